"""Every input of a request is bounded, and its strings are free of control characters.

The test reads the schemas by which requests are validated, so it sees every endpoint that is added.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import SchemaValidator, ValidationError

from pipeline.interfaces import api as package
from pipeline.interfaces import compatibility as compat
from pipeline.interfaces import rest as v1
from pipeline.interfaces.compatibility.docling.options import ConvertOptions
from pipeline.interfaces.console import live, screens, session
from pipeline.interfaces.http.fields import DROPPED, Line
from pipeline.interfaces.http.screenshots import FrameFields
from pipeline.interfaces.http.submission import SubmitOptions
from pipeline.interfaces.rest import health, metrics
from pipeline.interfaces.rest.knowledge_intake import BODY, ItemData
from pipeline.nodes.protocol import from_node, from_session

ROUTES = [
    route
    for router in (
        *v1.ROUTERS,
        *compat.ROUTERS,
        health.router,
        metrics.router,
        *screens.ROUTERS,
        session.router,
        live.router,
    )
    for route in router.routes
    if isinstance(route, APIRoute)
]
VIEWS = [view.query for view in live.VIEWS.values() if view.query.model_fields]
FORMS = [SubmitOptions, FrameFields, ItemData, ConvertOptions, *VIEWS]
"""The validators of multipart fields, and of queries beside a file as the body."""
CONTENT = {"message.text", "message.result", "message.body"}
"""Texts between models and sessions through the gateway: limited as a whole, and never displayed."""
READERS = {"bodies.py", "idempotency.py", "uploads.py", "knowledge_intake.py"}
"""The modules that may read a body themselves. They limit and validate it."""

DIRTY: list[Any] = ["a\0b", "a\x1b[2Jb", "a\x85b", "a\x9bb", "\u202ea", "a\u2066b", "a\ud800b"]
LONG = [char * 10_001 for char in "a0- ,._:/["]
ABSURD: list[Any] = [
    10**30,
    -(10**30),
    2**63,
    float("nan"),
    float("inf"),
    -1e308,
    1e308,
    "9" * 400,
    "1e400",
    "nan",
    "-inf",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    [[]] * 9,
    {"a": {}},
    timedelta(days=10**8),
]
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
WRAPPERS = frozenset({"function-after", "function-before", "function-wrap"})
HARMLESS = frozenset({"bool", "enum", "literal", "none"})
LISTS = frozenset({"list", "set", "tuple"})


def breaches(schema: Any, where: str, definitions: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of this schema that accept too much."""
    kind = schema["type"]
    if kind == "definitions":
        definitions = definitions | {definition["ref"]: definition for definition in schema["definitions"]}
    elif kind == "definition-ref":  # each once: a model may be recursive
        definitions = dict(definitions)
        schema = definitions.pop(schema["schema_ref"], {"type": "none"})
    if kind in LISTS and "max_length" not in schema and (kind != "tuple" or "variadic_item_index" in schema):
        yield f"{where}: a list of any length"
    if kind == "dict" and "max_length" not in schema:
        yield f"{where}: takes any number of names"
    if schema.get("config", {}).get("extra_fields_behavior") == "allow":
        yield f"{where}: takes any field"
    within = list(_within(schema))
    for name, definition in within:
        yield from breaches(definition, where + name, definitions)
    if not within and schema["type"] not in HARMLESS and not schema.get("metadata", {}).get(DROPPED):
        yield from _taken(schema, where)


def _within(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, schema) of the schema's parts; nothing for a scalar and the functions around it."""
    if "choices" in schema:
        choices = schema["choices"]
        for choice in choices.values() if isinstance(choices, dict) else choices:
            yield "", choice[0] if isinstance(choice, tuple) else choice
    elif schema["type"] == "model-fields":
        for name, choice in schema["fields"].items():
            yield f".{name}", choice["schema"]
    elif schema["type"] in LISTS:
        items = schema["items_schema"]
        for choice in items if isinstance(items, list) else [items]:
            yield "[]", choice
    elif schema["type"] == "dict":
        for part in ("keys", "values"):
            yield f"{{{part}}}", schema.get(f"{part}_schema", {"type": "any"})
    elif "schema" in schema and (schema["type"] not in WRAPPERS or any(_within(_innermost(schema)))):
        yield "", schema["schema"]


def _innermost(schema: Any) -> Any:
    while schema["type"] in WRAPPERS:
        schema = schema["schema"]
    return schema


def _taken(schema: Any, where: str) -> Iterator[str]:
    """Yield the hostile values that a scalar accepts."""
    innermost = _innermost(schema)
    hostile = (
        [*DIRTY, *(() if "max_length" in innermost else LONG)] if innermost["type"] == "str" else [*DIRTY, *ABSURD]
    )
    validator = SchemaValidator(schema)
    for value in hostile:
        try:
            accepted = validator.validate_python(value)
        except (ValidationError, OverflowError):
            continue
        if value in DIRTY and isinstance(accepted, str) and not any(map(CONTROL.match, accepted)):
            continue  # the validator cleaned it
        yield f"{where}: takes {str(value)[:20]!r}"


def check(schema: Any, where: str) -> list[str]:
    return list(breaches(schema, where, {}))


def flat(dependant: Dependant) -> Iterator[Any]:
    for kind in ("path_params", "query_params", "header_params", "cookie_params", "body_params"):
        for field in getattr(dependant, kind):
            yield kind, field
    for dependency in dependant.dependencies:
        yield from flat(dependency)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{min(route.methods)} {route.path}")
def test_every_input_of_an_endpoint_is_bounded_and_clean(route: APIRoute) -> None:
    problems = [
        problem
        for kind, field in flat(route.dependant)
        for problem in check(field._type_adapter.core_schema, f"{kind.removesuffix('_params')} {field.name}")
    ]
    assert not problems


def test_all_routes_are_seen() -> None:
    assert len(ROUTES) > 100


@pytest.mark.parametrize("model", FORMS, ids=lambda model: model.__name__)
def test_every_input_of_a_form_is_bounded_and_clean(model: type[BaseModel]) -> None:
    assert not check(model.__pydantic_core_schema__, model.__name__)


def test_bodies_that_endpoints_read_themselves_are_bounded_and_clean() -> None:
    assert not check(BODY.core_schema, "items")
    folder = Path(str(package.__file__)).parent
    reading = re.compile(r"\b(request|receive\w*)\.(body|stream|json|form)\(|await receive\(")
    assert {path.name for path in folder.rglob("*.py") if reading.search(path.read_text())} <= READERS


@pytest.mark.parametrize("messages", [from_node, from_session], ids=["node", "session"])
def test_every_input_of_the_gateway_is_bounded_and_clean(messages: TypeAdapter[Any]) -> None:
    problems = [
        problem for problem in check(messages.core_schema, "message") if re.split("[{:]", problem)[0] not in CONTENT
    ]
    assert not problems


class Careless(BaseModel):
    model_config = ConfigDict(extra="allow")
    text: str = ""
    cut: str = Field(default="", max_length=9)
    number: int = 0
    below: float = Field(default=0, lt=9)
    many: list[Line] = []
    anything: Any = None
    by_name: dict[str, int] = {}


def test_the_rules_report_each_breach() -> None:
    report = "\n".join(check(Careless.__pydantic_core_schema__, "body"))
    for name in ("text", "cut", "number", "below", "many", "anything", "by_name"):
        assert f"body.{name}" in report
    assert "any field" in report
