"""What answers are made of: the fields of views that callers get to see, with an example for the OpenAPI document."""

from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue


class Shape(BaseModel):
    """Some fields of a view: `Shape.model_validate(view)`. What it does not name is not told."""

    model_config = ConfigDict(from_attributes=True)


def example(**values: JsonValue) -> ConfigDict:
    """The `model_config` of a shape with this example."""
    extra: dict[str, Any] = {"examples": [values]}
    return ConfigDict(from_attributes=True, json_schema_extra=extra)


def started(what: str) -> dict[str, Any]:
    """The OpenAPI description of a 202: `what` was started, and where it is."""
    location = {"description": "Where it is.", "schema": {"type": "string"}}
    return {"description": what, "headers": {"Location": location}}
