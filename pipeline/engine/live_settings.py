"""Live settings, which change while the fleet runs: rows of `system_settings`, validated on write and read."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from sqlalchemy import BigInteger, String, Text, cast, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine.errors import UserError
from pipeline.engine.limits import format_windows, parse_windows
from pipeline.engine.tables import Base, UtcDateTime, table_of, upsert
from pipeline.engine.transaction import Tx
from pipeline.engine.wire import VIEW

VERSION = "version"
"""The key of a row that counts changes of the other rows, without edits by hand."""
NOTE = "note."
"""The prefix of keys of rows that say who last changed a setting, and why."""
Section = TypeVar("Section", bound=BaseModel)
DEFAULTS = "defaults"
"""The key of a row with the fleet's defaults: its processes may run with different settings."""


class SystemSetting(Base):
    """One live setting. `value` is JSON."""

    __tablename__ = "system_settings"

    key: Mapped[str] = mapped_column(String(120), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


@dataclass(frozen=True)
class Live:
    """A live setting: its help, the parser of its text (raises `ValueError`), and its default."""

    help: str
    read: Callable[[str], Any]
    default: Any


@dataclass(frozen=True)
class Value:
    """A live setting and its value."""

    __pydantic_config__ = VIEW
    key: str
    value: Any
    help: str
    is_default: bool
    error: str = ""
    """The error of an invalid row, which leaves the default in force; else empty."""
    default: Any = None
    """The value after a reset: the one that the workers, or else this process, started with."""
    changed_at: datetime | None = None
    """The time of the last change or reset; None: none is on record."""
    changed_by: str = ""
    reason: str = ""
    """The reason given for that change."""

    @property
    def text(self) -> str:
        """The value as people write it: `0.00001` and not `1e-05`."""
        return text_of(self.value)


def text_of(value: Any) -> str:
    """A value as people write it."""
    return f"{value:.12f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` to `most`, which raises `ValueError`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"'{text}' is not a whole number") from None
        if not least <= number <= most:
            raise ValueError(f"{number} is not from {least} to {most}")
        return number

    return read


def amount(text: str) -> float:
    """Parse an amount of money, from 0 to less than 1,000,000,000. Raises `ValueError`."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None
    if not 0 <= number < 1e9:
        raise ValueError(f"{text} is not from 0 to 1000000000")
    return number


def windows(text: str) -> str:
    """Parse limits; return them in their shortest form, as text. Raises `ValueError`."""
    return format_windows(parse_windows(text))


class _FieldReader:
    """Parses a field's text by the rules of its model. Raises `ValueError` in one line."""

    def __init__(self, model: type[BaseModel], name: str) -> None:
        self._model, self._name = model, name

    def __call__(self, text: str) -> Any:
        try:
            return _adapter(self._model, self._name).validate_python(text)
        except ValidationError as error:
            raise ValueError(error.errors(include_url=False)[0]["msg"]) from None


@lru_cache
def _adapter(model: type[BaseModel], name: str) -> TypeAdapter[Any]:
    field = model.model_fields[name]
    return TypeAdapter(Annotated[(field.annotation, *field.metadata)])  # type: ignore[arg-type]  # its rules, as data


def of_fields(prefix: str, own: BaseModel, help_of: Mapping[str, str]) -> dict[str, Live]:
    """Return live settings `prefix.field` for a section of the settings, with its rules and its values as defaults.

    `help_of`: the help of each field.
    """
    return {
        f"{prefix}.{name}": Live(text, _FieldReader(type(own), name), getattr(own, name))
        for name, text in help_of.items()
    }


def with_changes(own: Section, live_values: Iterable["Value"]) -> Section:
    """Return a copy of a section of the settings with its live changes."""
    changed = {value.key.partition(".")[2]: value.value for value in live_values if not value.is_default}
    return own.model_copy(update=changed) if changed else own


def stored(session: Session) -> dict[str, str]:
    """Return all rows of `system_settings`, as JSON by key."""
    return dict(session.execute(select(SystemSetting.key, SystemSetting.value)).all())


def values(session: Session, known: Mapping[str, Live]) -> list[Value]:
    """Return the value in force of every known setting, also without a row, in the order of `known`."""
    return values_in(stored(session), known)


def values_in(rows: Mapping[str, str], known: Mapping[str, Live]) -> list[Value]:
    """Return the values of all known settings by these rows; for an invalid row, the default with an `error`. The
    default is the fleet's, if it has published one."""
    defaults, settings = _defaults(rows), []
    for key, live in known.items():
        default = defaults.get(key, live.default)
        value = Value(key, default, live.help, is_default=True, default=default, **_note_of(rows, key))
        if key in rows:
            try:
                value = replace(value, value=live.read(str(json.loads(rows[key]))), is_default=False)
            except ValueError as error:
                value = replace(value, error=f"the row is invalid: {error}")
        settings.append(value)
    return settings


def _note_of(rows: Mapping[str, str], key: str) -> dict[str, Any]:
    """The fields of a value that describe its last change; empty without a note, or if the note is invalid."""
    try:
        note = json.loads(rows.get(NOTE + key, "{}"))
        at = datetime.fromisoformat(note["at"])
        return {"changed_at": at, "changed_by": str(note["by"]), "reason": str(note["reason"])}
    except (ValueError, TypeError, KeyError):
        return {}


def note(tx: Tx, key: str, reason: str, by: str) -> None:
    """Record the time, the author and the reason of a setting's last change."""
    put(tx, NOTE + key, {"at": tx.now.isoformat(), "by": by, "reason": reason})


def unknown(key: str, known: Iterable[str]) -> UserError:
    """Return the `UserError` for an unknown key, with the nearest known one. Does not raise it."""
    near = get_close_matches(key, list(known), n=1)
    suggestion = f" (did you mean {near[0]}?)" if near else ""
    return UserError(
        f"there is no live setting {key}{suggestion}; see `penstock settings list`", code="unknown_setting"
    )


def change(tx: Tx, known: Mapping[str, Live], key: str, text: str) -> Any:
    """Set a live setting from its text; return the value. Raises `UserError` for an unknown key or a bad value."""
    if key not in known:
        raise unknown(key, known)
    try:
        value = known[key].read(text.strip())
    except ValueError as error:
        raise UserError(f"{key}: {error}", code="bad_value") from error
    put(tx, key, value)
    return value


def publish_defaults(tx: Tx, defaults: Mapping[str, Any]) -> bool:
    """Publish these defaults as the fleet's, beside the published ones of other keys; return whether any changed."""
    if _defaults(stored(tx)).items() >= defaults.items():
        return False
    bump(tx)  # locks out other writers until the commit
    put(tx, DEFAULTS, _defaults(stored(tx)) | dict(defaults))
    return True


def _defaults(rows: Mapping[str, str]) -> dict[str, Any]:
    try:
        return dict(json.loads(rows.get(DEFAULTS, "{}")))
    except (ValueError, TypeError):  # edited by hand
        return {}


def bump(tx: Tx) -> None:
    """Raise the rows' version before a change. A concurrent writer of rows waits here.

    The version starts from the time, so that a new database has a higher one than a deleted database.
    """
    insert: Any = sqlite.insert if tx.get_bind().dialect.name == "sqlite" else postgresql.insert
    table = table_of(SystemSetting)
    higher = cast(cast(table.c.value, BigInteger) + 1, Text)
    row = {"key": VERSION, "value": str(int(tx.now.timestamp() * 1000)), "updated_at": tx.now}
    changed = {"value": higher, "updated_at": tx.now}
    tx.execute(insert(table).values(row).on_conflict_do_update(index_elements=["key"], set_=changed))


def put(tx: Tx, key: str, value: Any) -> None:
    """Write one row, with `value` as JSON, and raise the version."""
    bump(tx)
    # An upsert, since several processes may write at once.
    upsert(tx, table_of(SystemSetting), [{"key": key, "value": json.dumps(value), "updated_at": tx.now}])


def drop(tx: Tx, key: str) -> None:
    """Delete one row, so that the default holds again."""
    bump(tx)
    tx.execute(delete(SystemSetting).where(SystemSetting.key == key))
