"""`/api/v1/settings`: settings that can be changed while everything runs. Only administrators see and change them."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import ConfigDict, Field, JsonValue

from pipeline.interfaces.http.dependencies import ByCaller, admin, reader
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Line, Strict, Word
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.pages import Page
from pipeline.interfaces.http.shapes import Shape, example
from pipeline.storage.api_keys import Scope
from tasks import queues as control


def _administrators(caller: ByCaller) -> None:
    """Also in read-only mode, in which nobody may do what needs the right `admin`."""
    caller.check_scope(Scope.ADMIN)


router = APIRouter(prefix="/settings", tags=["settings"], route_class=JsonRoute)
seeing = [*reader, Depends(_administrators)]


class SettingShape(Shape):
    """A live setting."""

    model_config = example(
        key="queue.vision.openai.limits",
        value="10/s, 500/min",
        is_default=False,
        error="",
        default="",
        changed_at="2026-11-22T10:00:00Z",
        changed_by="laptop",
        reason="the invoice run comes first",
        help="calls or tokens in a window, this queue alone: 10/s, 100000 tokens/min",
    )
    key: str
    value: JsonValue
    help: str
    is_default: bool
    error: str = Field(description="Its row holds nonsense, so what was in force still is; else empty.")
    default: JsonValue = Field(description="What it is once it is reset.")
    changed_at: datetime | None = Field(description="When it was last changed or reset, if that is known.")
    changed_by: str
    reason: str


class SettingValue(Strict):
    """A setting's new value."""

    model_config = ConfigDict(coerce_numbers_to_str=True, json_schema_extra={"examples": [{"value": "10/s, 500/min"}]})
    value: Line = Field(description="As text: `10/s`, `4`, `true`.")
    reason: Line = Field(default="", description="Why; shown beside the value.")


@router.get("", dependencies=seeing)
def list_settings() -> Page[SettingShape]:
    """List every live setting with its value and its meaning."""
    return Page(items=[SettingShape.model_validate(found) for found in control.list_settings()])


@router.get("/{key}", dependencies=seeing, responses=documented(404))
def show(key: Word) -> SettingShape:
    """Show a live setting."""
    return SettingShape.model_validate(control.setting(key))


@router.put("/{key}", dependencies=admin, responses=documented(404))
def change(key: Word, new: SettingValue, caller: ByCaller) -> SettingShape:
    """Change a live setting. It takes effect on every worker within two seconds."""
    control.change_setting(key, new.value, reason=new.reason, by=caller.name)
    return SettingShape.model_validate(control.setting(key))


@router.delete("/{key}", dependencies=admin, responses=documented(404))
def reset(
    key: Word, caller: ByCaller, reason: Annotated[Line, Query(description="Why; shown beside the value.")] = ""
) -> SettingShape:
    """Return a live setting to its default."""
    control.reset_setting(key, reason=reason, by=caller.name)
    return SettingShape.model_validate(control.setting(key))
