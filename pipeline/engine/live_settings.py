"""Settings that can be changed while the fleet runs: rows of `system_settings`, validated when written and read."""

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
"""The key of a row that counts the changes of all others, by hand aside."""
NOTE = "note."
"""What the keys of rows begin with that say who changed a setting last, and why."""
Section = TypeVar("Section", bound=BaseModel)
DEFAULTS = "defaults"
"""The key of a row with the fleet's defaults: settings of the processes that run it may differ."""


class SystemSetting(Base):
    """One live setting. `value` is JSON."""

    __tablename__ = "system_settings"

    key: Mapped[str] = mapped_column(String(120), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


@dataclass(frozen=True)
class Live:
    """A live setting: what it means, how its text is read (raises `ValueError`), and its default."""

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
    """The error of an invalid row, whose former value stays in force; else empty."""
    default: Any = None
    """What it is once it is reset: what the workers, or else this process, were started with."""
    changed_at: datetime | None = None
    """When it was last changed or reset; None: never, as far as is known."""
    changed_by: str = ""
    reason: str = ""
    """What was said for that change."""

    @property
    def text(self) -> str:
        """The value as people write it: `0.00001` and not `1e-05`."""
        return text_of(self.value)


def text_of(value: Any) -> str:
    """A value as people write it."""
    return f"{value:.12f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def whole(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number from `least` to `most`."""

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
    """Reads an amount of money, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a number") from None
    if not 0 <= number < 1e9:
        raise ValueError(f"{text} is not from 0 to 1000000000")
    return number


def windows(text: str) -> str:
    """Reads limits; gives their shortest form."""
    return format_windows(parse_windows(text))


class _FieldReader:
    """Reads a field as its own rules have it. Raises `ValueError` in one line."""

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
    """Live settings `prefix.field` of a flow's own settings, which are the defaults, by the same rules as at its start.

    `help_of`: what each field means.
    """
    return {
        f"{prefix}.{name}": Live(text, _FieldReader(type(own), name), getattr(own, name))
        for name, text in help_of.items()
    }


def with_changes(own: Section, found: Iterable["Value"]) -> Section:
    """A flow's own settings with what was changed of them live."""
    changed = {value.key.partition(".")[2]: value.value for value in found if not value.is_default}
    return own.model_copy(update=changed) if changed else own


def stored(session: Session) -> dict[str, str]:
    """All rows: key → JSON."""
    return dict(session.execute(select(SystemSetting.key, SystemSetting.value)).all())


def values(session: Session, known: Mapping[str, Live]) -> list[Value]:
    """The values of all known settings."""
    return values_in(stored(session), known)


def values_in(rows: Mapping[str, str], known: Mapping[str, Live]) -> list[Value]:
    """The values of all known settings by these rows. A default is the fleet's, where one was published."""
    defaults, found = _defaults(rows), []
    for key, live in known.items():
        default = defaults.get(key, live.default)
        value = Value(key, default, live.help, is_default=True, default=default, **_note_of(rows, key))
        if key in rows:
            try:
                value = replace(value, value=live.read(str(json.loads(rows[key]))), is_default=False)
            except ValueError as error:
                value = replace(value, error=f"the row holds nonsense: {error}")
        found.append(value)
    return found


def _note_of(rows: Mapping[str, str], key: str) -> dict[str, Any]:
    """Fields of a value that say who changed it last; nothing if nobody did, or the row was edited by hand."""
    try:
        note = json.loads(rows.get(NOTE + key, "{}"))
        at = datetime.fromisoformat(note["at"])
        return {"changed_at": at, "changed_by": str(note["by"]), "reason": str(note["reason"])}
    except (ValueError, TypeError, KeyError):
        return {}


def note(tx: Tx, key: str, reason: str, by: str) -> None:
    """Write down who changed a setting, and why."""
    put(tx, NOTE + key, {"at": tx.now.isoformat(), "by": by, "reason": reason})


def unknown(key: str, known: Iterable[str]) -> UserError:
    """The error for a key that is none of these, with the nearest that is."""
    near = get_close_matches(key, list(known), n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return UserError(f"there is no live setting {key}{meant}; see `penstock settings list`", code="unknown_setting")


def change(tx: Tx, known: Mapping[str, Live], key: str, text: str) -> Any:
    """Set a live setting from its text; the value. Raises `UserError` for an unknown key or a bad value."""
    if key not in known:
        raise unknown(key, known)
    try:
        value = known[key].read(text.strip())
    except ValueError as error:
        raise UserError(f"{key}: {error}", code="bad_value") from error
    put(tx, key, value)
    return value


def publish_defaults(tx: Tx, defaults: Mapping[str, Any]) -> bool:
    """Make these defaults the fleet's, beside those of other keys that were published; whether that changed any."""
    if _defaults(stored(tx)).items() >= defaults.items():
        return False
    bump(tx)  # holds others off until this is committed
    put(tx, DEFAULTS, _defaults(stored(tx)) | dict(defaults))
    return True


def _defaults(rows: Mapping[str, str]) -> dict[str, Any]:
    try:
        return dict(json.loads(rows.get(DEFAULTS, "{}")))
    except (ValueError, TypeError):  # edited by hand
        return {}


def bump(tx: Tx) -> None:
    """Give the rows a higher version, before they are changed: who changes rows at the same time, waits here.

    It begins with the time, so that a new database is newer than one that was deleted.
    """
    insert: Any = sqlite.insert if tx.get_bind().dialect.name == "sqlite" else postgresql.insert
    table = table_of(SystemSetting)
    higher = cast(cast(table.c.value, BigInteger) + 1, Text)
    row = {"key": VERSION, "value": str(int(tx.now.timestamp() * 1000)), "updated_at": tx.now}
    changed = {"value": higher, "updated_at": tx.now}
    tx.execute(insert(table).values(row).on_conflict_do_update(index_elements=["key"], set_=changed))


def put(tx: Tx, key: str, value: Any) -> None:
    """Write one row."""
    bump(tx)
    # An upsert, since several may write at once: whoever makes a call notes its breaker.
    upsert(tx, table_of(SystemSetting), [{"key": key, "value": json.dumps(value), "updated_at": tx.now}])


def drop(tx: Tx, key: str) -> None:
    """Delete one row: the default is in force again."""
    bump(tx)
    tx.execute(delete(SystemSetting).where(SystemSetting.key == key))
