"""A JSON schema as lines: each field by its dotted path, with its type, bounds and default.

Names of schemas, titles, descriptions and examples do not show: no program depends on them.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_STRUCTURE = {
    "$ref",
    "$defs",
    "type",
    "properties",
    "required",
    "items",
    "prefixItems",
    "additionalProperties",
    "propertyNames",
    "anyOf",
    "oneOf",
    "allOf",
    "enum",
    "const",
    "default",
    "discriminator",
}
_WORDS = {"title", "description", "examples", "example", "readOnly"}


class Fields:
    """The schemas of one document, by the references to them.

    `answers`: the schemas are of answers, which have all their fields: no default and no `optional` shows.
    """

    def __init__(self, document: Schema, *, answers: bool = False) -> None:
        self._document, self._answers = document, answers

    def lines(self, schema: Schema, name: str = "") -> Iterator[str]:
        """Yield the schema itself, as `name`, and each field below it."""
        yield f"{name} {self._type(schema)}".strip()
        yield from self._below(schema, name, ())

    def _resolved(self, schema: Schema) -> Schema:
        if "$ref" not in schema:
            return schema
        target: Any = self._document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return {**self._resolved(target), **{key: value for key, value in schema.items() if key != "$ref"}}

    def _type(self, schema: Schema) -> str:
        """Return the type in words. Bounds are those of JSON schema."""
        schema = self._resolved(schema)
        several = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or ()
        bounds = [
            f"{key}={_value(schema[key])}" for key in sorted(schema.keys() - _STRUCTURE - _WORDS) if schema[key] != {}
        ]
        if "const" in schema or "enum" in schema:
            words = " | ".join(sorted(_value(choice) for choice in schema.get("enum", [schema.get("const")])))
        elif "type" not in schema and several:
            words = " | ".join(sorted({self._type(choice) for choice in several}))
        else:
            words = self._kind(schema)
        return " ".join([words, *bounds])

    def _kind(self, schema: Schema) -> str:
        kind = schema.get("type", "any")
        if kind == "array" and "prefixItems" in schema:
            return f"[{', '.join(self._type(position) for position in schema['prefixItems'])}]"
        if kind == "array":
            item = self._type(schema.get("items", {}))
            return f"({item})[]" if " " in item else f"{item}[]"
        further = schema.get("additionalProperties")
        if kind == "object" and isinstance(further, dict):
            key = self._type(schema.get("propertyNames", {"type": "string"}))
            return f"{{{key}: {self._type(further)}}}"
        return "object without others" if further is False else str(kind)

    def _below(self, schema: Schema, name: str, above: tuple[str, ...]) -> Iterator[str]:
        reference = schema.get("$ref", "")
        if reference and reference in above:
            yield f"{name} … as above"
            return
        above, schema = (*above, reference), self._resolved(schema)
        required = schema.get("required", ())
        for key, field in schema.get("properties", {}).items():
            path = f"{name}.{key}".lstrip(".")
            yield f"{path} {self._type(field)}{self._need(field, needed=key in required)}"
            yield from self._below(field, path, above)
        for part in ("items", "additionalProperties"):
            if isinstance(schema.get(part), dict):
                yield from self._below(schema[part], name + ("[]" if part == "items" else ".*"), above)
        several = [
            variant
            for key in ("anyOf", "oneOf", "allOf")
            for variant in schema.get(key, ())
            if self._has_fields(variant)
        ]
        for number, variant in enumerate(several, 1):
            yield from self._below(
                variant, f"{name}<{self._label(variant) or number}>" if len(several) > 1 else name, above
            )

    def _need(self, schema: Schema, *, needed: bool) -> str:
        """Return the default, ` optional`, or nothing for a required field."""
        if self._answers:
            return ""
        schema = self._resolved(schema)
        if "default" in schema and "properties" not in schema:
            return f" = {_value(schema['default'])}"
        return "" if needed else " optional"

    def _has_fields(self, schema: Schema) -> bool:
        return bool(self._resolved(schema).keys() & {"properties", "items", "additionalProperties"})

    def _label(self, schema: Schema) -> str:
        """Return the constants that distinguish one of several kinds of objects."""
        fields = self._resolved(schema).get("properties", {}).items()
        return ",".join(f"{key}={_value(field['const'])}" for key, field in fields if "const" in field)

    def parameter(self, schema: Schema, name: str, *, needed: bool) -> Iterator[str]:
        """Yield the same lines for a single parameter."""
        yield f"{name} {self._type(schema)}{self._need(schema, needed=needed)}"
        yield from self._below(schema, name, ())


def _value(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
