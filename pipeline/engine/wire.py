"""Marks of views for the HTTP interfaces that answer with them."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, PlainSerializer
from pydantic_core import CoreSchema, core_schema

VIEW = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)
"""`__pydantic_config__` of a view in HTTP answers: its fields' docstrings become the schema's descriptions."""
HIDDEN = Field(exclude=True)
"""`Annotated[str, HIDDEN]`: a field of a view that HTTP answers leave out, such as a path on this machine."""
NAMED = PlainSerializer(lambda state: state.name, return_type=str)
"""`Annotated[State, NAMED]`: a numbered state of a view, by its name. The schema says `string`: more may follow."""


def example(**values: Any) -> ConfigDict:
    """Return `VIEW` for a class of views, with these values as the example of an answer in its schema."""
    return ConfigDict(**VIEW, json_schema_extra={"examples": [values]})


@dataclass(frozen=True)
class ByName:
    """`Annotated[State, ByName()]`: a numbered state, by its name."""

    def __get_pydantic_core_schema__(self, source: type[Enum], _: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object) -> Enum:
            if isinstance(value, source):
                return value
            try:
                return source[str(value)]
            except KeyError:
                raise ValueError(f"must be one of {', '.join(source.__members__)}") from None

        return core_schema.no_info_plain_validator_function(
            read,
            json_schema_input_schema=core_schema.literal_schema(list(source.__members__)),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda state: state.name, return_schema=core_schema.literal_schema(list(source.__members__))
            ),
        )
