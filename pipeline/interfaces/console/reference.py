"""The OpenAPI document as pages: every operation by subject, and one with all that it takes and gives.

Our own, for want of one that is small, works without JavaScript, and under a policy that allows nothing inline.
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
    """Something that is sent or answered; `depth` says within how many others."""

    name: str
    kind: str
    about: str = ""
    where: str = ""
    """`path`, `query`, `header`; empty within a body."""
    required: bool = False
    depth: int = 0


@dataclass(frozen=True)
class Body:
    """What a request or an answer holds."""

    media: str
    fields: list[Field]
    example: str = ""


@dataclass(frozen=True)
class Answer:
    """What may be answered."""

    status: str
    about: str
    bodies: list[Body] = field(default_factory=list)


@dataclass(frozen=True)
class Operation:
    """A method at an address. `id` names it in addresses."""

    id: str
    subject: str
    method: str
    path: str
    summary: str
    about: str
    spec: Document

    @property
    def text(self) -> str:
        """What a search looks into."""
        names = " ".join(str(one.get("name", "")) for one in self.spec.get("parameters", ()))
        return f"{self.method} {self.path} {self.summary} {self.about} {self.subject} {names}".lower()


def operations(document: Document) -> list[Operation]:
    """Every operation, in the order of its subjects."""
    found = []
    for path, methods in document["paths"].items():
        for method in METHODS:
            if (spec := methods.get(method)) is not None:
                first, _, rest = str(spec.get("description", "")).partition("\n")
                subject = (spec.get("tags") or ["the server"])[0]
                found.append(
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
    return sorted(found, key=lambda one: one.subject)  # stable: addresses of a subject stay in their order


def search(known: list[Operation], words: str) -> list[Operation]:
    """Those with all of these words."""
    wanted = words.lower().split()
    return [one for one in known if all(word in one.text for word in wanted)]


def parameters(document: Document, operation: Operation) -> list[Field]:
    """What stands in the address and the headers."""
    return [
        Field(
            one["name"],
            _kind(document, one.get("schema", {})).removesuffix(" or null"),
            one.get("description", ""),
            one.get("in", ""),
            bool(one.get("required")),
        )
        for one in operation.spec.get("parameters", ())
    ]


def request_bodies(document: Document, operation: Operation) -> list[Body]:
    """What may be sent."""
    return list(_bodies(document, operation.spec.get("requestBody", {})))


def answers(document: Document, operation: Operation) -> list[Answer]:
    """What may be answered: first what is hoped for."""
    return [
        Answer(status, one.get("description", ""), list(_bodies(document, one)))
        for status, one in sorted(operation.spec.get("responses", {}).items())
    ]


def curl(document: Document, operation: Operation, server: str, *, key: bool) -> str:
    """A command that does it."""
    path = operation.path
    for one in parameters(document, operation):
        if one.where == "path":
            path = path.replace("{" + one.name + "}", one.name.upper())
    said = ["curl"]
    if operation.method != "GET":
        said.append(f"-X {operation.method}")
    if key:
        said.append('-H "Authorization: Bearer $PENSTOCK_KEY"')
    for body in request_bodies(document, operation)[:1]:
        if "json" in body.media:
            compact = json.dumps(json.loads(body.example), ensure_ascii=False) if body.example else "{}"
            said += [f"-H 'Content-Type: {body.media}'", "-d '" + compact.replace("'", "'\\''") + "'"]
        elif "multipart" in body.media:
            said += [
                f"-F {one.name}={'@FILE' if 'file' in one.kind else '…'}"
                for one in body.fields
                if one.required or "file" in one.kind
            ][:3]
    return " ".join([*said, f"'{server}{path}'"])


def _bodies(document: Document, spec: Document) -> Iterator[Body]:
    for media, content in spec.get("content", {}).items():
        if media == "application/problem+json":
            continue  # said once for all
        schema = content.get("schema", {})
        yield Body(media, list(_fields(document, schema, 0)), _example(document, schema))


def _resolved(document: Document, schema: Document) -> Document:
    seen = 0
    while "$ref" in schema and seen < 10:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema, seen = found, seen + 1
    return schema


def _alternatives(document: Document, schema: Document) -> list[Document]:
    """What it may be, apart from null."""
    schema = _resolved(document, schema)
    some = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return [found for one in some if (found := _resolved(document, one)).get("type") != "null"]


def _kind(document: Document, schema: Document) -> str:
    """What it is, in words."""
    kinds = [_kind_of_one(document, one) for one in _alternatives(document, schema)]
    some = _resolved(document, schema).get("anyOf") or []
    nullable = any(one.get("type") == "null" for one in some)
    return " or ".join(dict.fromkeys(one for one in [*kinds, "null" if nullable else ""] if one))


def _kind_of_one(document: Document, schema: Document) -> str:
    if "enum" in schema:
        return " | ".join(str(one) for one in schema["enum"] if one != "")
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
    for one in _alternatives(document, schema):
        if one.get("type") == "array":
            yield from _fields(document, one.get("items", {}), depth)
        required = set(one.get("required", ()))
        for name, inner in one.get("properties", {}).items():
            about = inner.get("description") or _resolved(document, inner).get("description", "")
            yield Field(name, _kind(document, inner), about, required=name in required, depth=depth)
            if depth < DEEPEST:
                yield from _fields(document, inner, depth + 1)


def _example(document: Document, schema: Document) -> str:
    found = _sample(document, schema, 0)
    return json.dumps(found, indent=2, ensure_ascii=False) if found not in (None, {}, []) else ""


def _sample(document: Document, schema: Document, depth: int) -> Any:
    """An example of it: its own, or made of those of its parts."""
    some = _alternatives(document, schema)
    if not some or depth > DEEPEST:
        return None
    one = some[0]
    if one.get("examples"):
        return one["examples"][0]
    if "properties" in one:
        return {name: _sample(document, inner, depth + 1) for name, inner in one["properties"].items()}
    if one.get("type") == "array":
        inner = _sample(document, one.get("items", {}), depth + 1)
        return [] if inner is None else [inner]
    if "enum" in one:
        return one["enum"][0]
    return one.get("default")
