"""`/api/v1/settings`: settings that change without a restart. Only administrators see and change them."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from pipeline.engine.live_settings import Value
from pipeline.interfaces.http.dependencies import ByCaller, admin, seeing
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Line, Strict, Word
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.pages import Page
from pipeline.operations import live_settings

router = APIRouter(prefix="/settings", tags=["settings"], route_class=JsonRoute)


class SettingValue(Strict):
    """A setting's new value."""

    model_config = ConfigDict(coerce_numbers_to_str=True, json_schema_extra={"examples": [{"value": "10/s, 500/min"}]})
    value: Line = Field(description="The value as text: `10/s`, `4`, `true`.")
    reason: Line = Field(default="", description="The reason; shown beside the value.")


@router.get("", dependencies=seeing)
def list_settings(caller: ByCaller) -> Page[Value]:
    """List every live setting with its value and its meaning."""
    return Page(items=live_settings.list_settings.by(caller))


@router.get("/{key}", dependencies=seeing, responses=documented(404))
def show(caller: ByCaller, key: Word) -> Value:
    """Show a live setting."""
    return live_settings.setting.by(caller, key)


@router.put("/{key}", dependencies=admin, responses=documented(404))
def change(caller: ByCaller, key: Word, new: SettingValue) -> Value:
    """Change a live setting. It takes effect on every worker within two seconds."""
    live_settings.change_setting.by(caller, key, new.value, reason=new.reason)
    return live_settings.setting.by(caller, key)


@router.delete("/{key}", dependencies=admin, responses=documented(404))
def reset(
    caller: ByCaller, key: Word, reason: Annotated[Line, Query(description="The reason; shown beside the value.")] = ""
) -> Value:
    """Return a live setting to its default."""
    live_settings.reset_setting.by(caller, key, reason=reason)
    return live_settings.setting.by(caller, key)
