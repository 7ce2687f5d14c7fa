"""What a view says of itself to HTTP interfaces, which answer with it."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, PlainSerializer
from pydantic_core import CoreSchema, core_schema

VIEW = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)
"""`__pydantic_config__` of a view that HTTP interfaces answer with: its fields' docstrings are the schema's."""
HIDDEN = Field(exclude=True)
"""`Annotated[str, HIDDEN]`: a field of a view that stays on this machine, such as a path. No HTTP answer has it."""
NAMED = PlainSerializer(lambda state: state.name, return_type=str)
"""`Annotated[State, NAMED]`: a numbered state of a view, by its name. The schema says `string`: there may be more."""


def example(**values: Any) -> ConfigDict:
    """`VIEW`, with an example of what is answered."""
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
