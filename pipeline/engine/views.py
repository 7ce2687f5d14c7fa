"""Views as JSON can hold them."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """A view, or a container of views, as JSON types: names of numbered states, ISO instants, paths as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    match value:
        case Mapping():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case IntEnum():
            return value.name
        case datetime():
            return value.isoformat()
        case Path():
            return str(value)
    return value
