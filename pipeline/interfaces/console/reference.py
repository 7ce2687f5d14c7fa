"""The OpenAPI document as pages: operations by subject, and one operation with its parameters, bodies and answers.

Penstock renders it itself: no small renderer works without JavaScript and inline styles.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

METHODS = ("get", "post", "put", "patch", "delete")
DEEPEST = 4
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A field of a request or an answer, nested `depth` levels deep."""

    name: str
    kind: str
    about: str = ""
    where: str = ""
    """`path`, `query` or `header`; empty in a body."""
    required: bool = False
    depth: int = 0


@dataclass(frozen=True)
class Body:
    """The body of a request or an answer."""

    media: str
    fields: list[Field]
    example: str = ""


@dataclass(frozen=True)
class Answer:
    """A possible answer."""

    status: str
    about: str
    bodies: list[Body] = field(default_factory=list)


@dataclass(frozen=True)
class Operation:
    """A method at a path. `id` names it in addresses."""

    id: str
    subject: str
    method: str
    path: str
    summary: str
    about: str
    spec: Document

    @property
    def text(self) -> str:
        """The text that a search matches, in lower case."""
        names = " ".join(str(parameter.get("name", "")) for parameter in self.spec.get("parameters", ()))
        return f"{self.method} {self.path} {self.summary} {self.about} {self.subject} {names}".lower()


def operations(document: Document) -> list[Operation]:
    """Return all operations, ordered by subject."""
    all_operations = []
    for path, methods in document["paths"].items():
        for method in METHODS:
            if (spec := methods.get(method)) is not None:
                first, _, rest = str(spec.get("description", "")).partition("\n")
                subject = (spec.get("tags") or ["the server"])[0]
                all_operations.append(
                    Operation(
                        spec["operationId"],
                        subject,
                        method.upper(),
                        path,
                        first or spec.get("summary", ""),
                        rest.strip(),
                        spec,
                    )
                )
    return sorted(
        all_operations, key=lambda operation: operation.subject
    )  # stable: paths of a subject keep their order


def search(known: list[Operation], words: str) -> list[Operation]:
    """Return the operations that have all of these words in their text, in any case."""
    wanted = words.lower().split()
    return [operation for operation in known if all(word in operation.text for word in wanted)]


def parameters(document: Document, operation: Operation) -> list[Field]:
    """Return the parameters in the path, the query and the headers."""
    return [
        Field(
            parameter["name"],
            _kind(document, parameter.get("schema", {})).removesuffix(" or null"),
            parameter.get("description", ""),
            parameter.get("in", ""),
            bool(parameter.get("required")),
        )
        for parameter in operation.spec.get("parameters", ())
    ]


def request_bodies(document: Document, operation: Operation) -> list[Body]:
    """Return the bodies that the operation accepts."""
    return list(_bodies(document, operation.spec.get("requestBody", {})))


def answers(document: Document, operation: Operation) -> list[Answer]:
    """Return the possible answers, successes first."""
    return [
        Answer(status, answer.get("description", ""), list(_bodies(document, answer)))
        for status, answer in sorted(operation.spec.get("responses", {}).items())
    ]


def curl(document: Document, operation: Operation, server: str, *, key: bool) -> str:
    """Return a curl command that calls the operation at `server`, with an example of its JSON body, or up to three
    fields of its form: files and required ones.

    `key`: with the header of a key.
    """
    path = operation.path
    for parameter in parameters(document, operation):
        if parameter.where == "path":
            path = path.replace("{" + parameter.name + "}", parameter.name.upper())
    words = ["curl"]
    if operation.method != "GET":
        words.append(f"-X {operation.method}")
    if key:
        words.append('-H "Authorization: Bearer $PENSTOCK_KEY"')
    for body in request_bodies(document, operation)[:1]:
        if "json" in body.media:
            compact = json.dumps(json.loads(body.example), ensure_ascii=False) if body.example else "{}"
            words += [f"-H 'Content-Type: {body.media}'", "-d '" + compact.replace("'", "'\\''") + "'"]
        elif "multipart" in body.media:
            words += [
                f"-F {parameter.name}={'@FILE' if 'file' in parameter.kind else '…'}"
                for parameter in body.fields
                if parameter.required or "file" in parameter.kind
            ][:3]
    return " ".join([*words, f"'{server}{path}'"])


def _bodies(document: Document, spec: Document) -> Iterator[Body]:
    for media, content in spec.get("content", {}).items():
        if media == "application/problem+json":
            continue  # the page describes errors once
        schema = content.get("schema", {})
        yield Body(media, list(_fields(document, schema, 0)), _example(document, schema))


def _resolved(document: Document, schema: Document) -> Document:
    seen = 0
    while "$ref" in schema and seen < 10:
        target: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema, seen = target, seen + 1
    return schema


def _alternatives(document: Document, schema: Document) -> list[Document]:
    """Return the alternatives of a schema, without null."""
    schema = _resolved(document, schema)
    alternatives = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return [
        resolved for alternative in alternatives if (resolved := _resolved(document, alternative)).get("type") != "null"
    ]


def _kind(document: Document, schema: Document) -> str:
    """Return the type of a schema in words."""
    kinds = [_kind_of_one(document, kind) for kind in _alternatives(document, schema)]
    alternatives = _resolved(document, schema).get("anyOf") or []
    nullable = any(kind.get("type") == "null" for kind in alternatives)
    return " or ".join(dict.fromkeys(kind for kind in [*kinds, "null" if nullable else ""] if kind))


def _kind_of_one(document: Document, schema: Document) -> str:
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"] if value != "")
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"list of {_kind(document, schema.get('items', {}))}"
    if kind == "string":
        kind = {"date-time": "moment", "binary": "file"}.get(schema.get("format", ""), "text")
        kind = "file" if schema.get("contentMediaType") else kind
    kind = {"integer": "whole number", "boolean": "true or false"}.get(kind, kind)
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is not None and high is not None:
        kind += f", {low:,} to {high:,}"
    if (default := schema.get("default")) not in (None, "", [], {}):
        kind += f", default {json.dumps(default)}"
    return kind


def _fields(document: Document, schema: Document, depth: int) -> Iterator[Field]:
    for alternative in _alternatives(document, schema):
        if alternative.get("type") == "array":
            yield from _fields(document, alternative.get("items", {}), depth)
        required = set(alternative.get("required", ()))
        for name, inner in alternative.get("properties", {}).items():
            about = inner.get("description") or _resolved(document, inner).get("description", "")
            yield Field(name, _kind(document, inner), about, required=name in required, depth=depth)
            if depth < DEEPEST:
                yield from _fields(document, inner, depth + 1)


def _example(document: Document, schema: Document) -> str:
    sample = _sample(document, schema, 0)
    return json.dumps(sample, indent=2, ensure_ascii=False) if sample not in (None, {}, []) else ""


def _sample(document: Document, schema: Document, depth: int) -> Any:
    """Return the schema's example, or build one from the examples of its parts, its first value or its default; None
    without these, or below `DEEPEST` levels."""
    alternatives = _alternatives(document, schema)
    if not alternatives or depth > DEEPEST:
        return None
    first = alternatives[0]
    if first.get("examples"):
        return first["examples"][0]
    if "properties" in first:
        return {name: _sample(document, inner, depth + 1) for name, inner in first["properties"].items()}
    if first.get("type") == "array":
        inner = _sample(document, first.get("items", {}), depth + 1)
        return [] if inner is None else [inner]
    if "enum" in first:
        return first["enum"][0]
    return first.get("default")
