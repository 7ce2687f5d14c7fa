"""Shapes of answers that differ from their views, and parts of the OpenAPI document."""

from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue


class Shape(BaseModel):
    """Some fields of a view: `Shape.model_validate(view)`. The answer holds no other fields."""

    model_config = ConfigDict(from_attributes=True)


def example(**values: JsonValue) -> ConfigDict:
    """Return the `model_config` of a `Shape` with these values as its example in the OpenAPI document."""
    extra: dict[str, Any] = {"examples": [values]}
    return ConfigDict(from_attributes=True, json_schema_extra=extra)


def started(description: str) -> dict[str, Any]:
    """Return the OpenAPI description of a 202 with its `Location`. `description`: what the 202 means."""
    location = {"description": "The address of what started.", "schema": {"type": "string"}}
    return {"description": description, "headers": {"Location": location}}
