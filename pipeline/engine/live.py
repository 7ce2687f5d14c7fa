"""Settings that can be changed while everything runs: rows of `system_settings`, validated before and after."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import String, Text, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine.errors import UserError
from pipeline.engine.limits import format_windows, parse_windows
from pipeline.engine.tables import Base, UtcDateTime, table_of, upsert


class SystemSetting(Base):
    """One live setting. `value` is JSON."""

    __tablename__ = "system_settings"

    key: Mapped[str] = mapped_column(String(120), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


@dataclass(frozen=True)
class Live:
    """A kind of live setting: what it means, how its text is read (raises `ValueError`), and its default."""

    help: str
    read: Callable[[str], Any]
    default: Any


@dataclass(frozen=True)
class Value:
    """A live setting as it stands. `error`: its row is nonsense, and what was in force before still is."""

    key: str
    value: Any
    help: str
    is_default: bool
    error: str = ""


def whole(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number from `least` to `most`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"'{text}' is no whole number") from None
        if not least <= number <= most:
            raise ValueError(f"{number} is not from {least} to {most}")
        return number

    return read


def amount(text: str) -> float:
    """Reads an amount of money, 0 or more."""
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError(f"{text} is not from 0 to 1000000000")
    return number


def windows(text: str) -> str:
    """Reads limits, and gives them in their shortest form."""
    return format_windows(parse_windows(text))


def stored(session: Session) -> dict[str, str]:
    """All rows: key → JSON."""
    return dict(session.execute(select(SystemSetting.key, SystemSetting.value)).all())


def values(session: Session, known: dict[str, Live]) -> list[Value]:
    """Every known setting as it stands."""
    rows = stored(session)
    return [_value(key, live, rows.get(key)) for key, live in known.items()]


def _value(key: str, live: Live, row: str | None) -> Value:
    if row is None:
        return Value(key, live.default, live.help, is_default=True)
    try:
        return Value(key, live.read(str(json.loads(row))), live.help, is_default=False)
    except ValueError as error:
        return Value(key, live.default, live.help, is_default=True, error=f"the row holds nonsense: {error}")


def change(session: Session, known: dict[str, Live], key: str, text: str, now: datetime) -> Any:
    """Set a live setting from its text; the value. Raises `UserError` for an unknown key or a bad value."""
    if key not in known:
        raise UserError(f"there is no live setting {key}; see `penstock settings list`", code="unknown_setting")
    try:
        value = known[key].read(text.strip())
    except ValueError as error:
        raise UserError(f"{key}: {error}", code="bad_value") from error
    put(session, key, value, now)
    return value


def put(session: Session, key: str, value: Any, now: datetime) -> None:
    """Write one row."""
    # Two writers at once must not trip over each other: breakers are remembered by whoever made the call.
    upsert(session, table_of(SystemSetting), [{"key": key, "value": json.dumps(value), "updated_at": now}])


def drop(session: Session, key: str) -> None:
    """Remove one row: the default is in force again."""
    session.execute(delete(SystemSetting).where(SystemSetting.key == key))
