"""Inputs and answers of the HTTP interfaces: the routes of the APIs, and those of the console."""

import re
from collections.abc import Iterator
from functools import cache
from tempfile import TemporaryDirectory

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts

from pipeline.interfaces.api.app import PREFIX, create_app
from pipeline.interfaces.console import live
from pipeline.interfaces.console.addresses import ROOT, STATIC
from pipeline.interfaces.http.errors import MEDIA_TYPE, STATUS, Problem
from pipeline.process import new_context
from tests.support import endpoints
from tests.support.all_settings import by_default
from tests.support.snapshots.fields import Fields, Schema

_TEMPLATES = STATIC.parent / "templates"
_FORM = re.compile(r'<form[^>]*action="([^"]*)"[^>]*enctype="multipart/form-data"[^>]*>(.*?)</form>', re.DOTALL)
_FIELD = re.compile(r'<(?:input|select|textarea|button)[^>]*\bname="([^"{]+)"')
_TAKEN = ("scope ", "path ", "query ", "header ", "body ")
"""The first words of facts about a request. The console's answers are pages, which are left out."""
_NEVER_SENT = {"application/json": {"schema": {"$ref": "#/components/schemas/HTTPValidationError"}}}
"""FastAPI's default documentation of errors, which is never sent: all our applications answer with a problem."""


class _Shown(RouteContext):
    """A route that the OpenAPI document shows, even if the application hides it."""

    include_in_schema = True
    operation_id = None

    @property
    def unique_id(self) -> str:
        return f"{self.methods} {self.path}"


@cache
def _app() -> FastAPI:
    """Return the application with the defaults of all settings, without starting it."""
    with TemporaryDirectory() as folder:
        return create_app(new_context(by_default(folder)), "127.0.0.1")


@cache
def operations() -> dict[str, list[str]]:
    """Return the facts about inputs and answers of each operation, by its method and path."""
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    routes = [
        _Shown(context.route, context._route_context)
        for context in iter_route_contexts([*_app().routes, *_app().state.console.routes])
    ]
    document = get_openapi(title="", version="", routes=routes)
    document["components"]["schemas"] |= problem.pop("$defs", {}) | {"Problem": problem}
    inputs, answered_fields, facts_by_operation = (
        Fields(document),
        Fields(document, answers=True),
        dict[str, list[str]](),
    )
    for route in routes:
        for method in sorted(route.methods or {"MOUNT"}):
            facts = facts_by_operation[f"{method} {route.path}"] = []
            if isinstance(route.original_route, APIRoute):
                facts.append(f"scope {endpoints.scope_of(route) or 'none'}")
                facts += [] if getattr(route._effective_route, "include_in_schema", True) else ["undocumented"]
                facts += _facts(inputs, answered_fields, document["paths"][route.path_format][method.lower()])
    return facts_by_operation


def _facts(inputs: Fields, answered_fields: Fields, operation: Schema) -> Iterator[str]:
    """Yield parameters, the body's fields and the answers' fields. `problems` lists the statuses of problems."""
    for parameter in operation.get("parameters", ()):
        yield from inputs.parameter(
            parameter.get("schema", {}),
            f"{parameter['in']} {parameter['name']}",
            needed=parameter.get("required", False),
        )
    body = operation.get("requestBody", {})
    for media, content in body.get("content", {}).items():
        yield f"body {media}{'' if body.get('required') else ' optional'}"
        yield from _of_content(inputs, "body" if len(body["content"]) == 1 else f"body {media}", content)
    problems = []
    for status, answer in operation["responses"].items():
        contents = answer.get("content", {})
        if contents == _NEVER_SENT:
            continue
        if MEDIA_TYPE in contents:
            problems.append(status)
        yield from (f"{status} header {name}" for name in answer.get("headers", ()))
        yield from (f"{status} {media}" for media in contents.keys() - {MEDIA_TYPE})
        if not contents:
            yield f"{status} without a body"
        for media, content in contents.items():
            if media != MEDIA_TYPE:
                yield from _of_content(answered_fields, status if len(contents) == 1 else f"{status} {media}", content)
    if problems:
        yield f"problems {' '.join(sorted(problems))}"


def _of_content(schemas: Fields, name: str, content: Schema) -> Iterator[str]:
    for part in ("schema", "itemSchema"):
        if part in content:
            yield from (f"{name} {line}" for line in schemas.lines(content[part]))


def _is_console(operation: str) -> bool:
    path = operation.partition(" ")[2]
    return path == "/" or path.startswith(ROOT)


def _promised(facts: list[str]) -> set[str]:
    """Return the facts without those about documentation."""
    return {fact for fact in facts if fact != "undocumented" and not fact.startswith("problems ")}


def routes() -> Iterator[str]:
    """Yield the routes of all APIs, and the statuses of errors by their codes."""
    operations_ = operations()
    for operation, facts in operations_.items():
        method, path = operation.split(" ")
        twin = f"{method} {PREFIX}{path}"
        if _is_console(operation):
            continue
        if "undocumented" in facts and _promised(facts) == _promised(operations_.get(twin, [])):
            yield f"{operation} = {twin}"
            continue
        yield operation
        yield from (f"{operation} {fact}" for fact in facts)
    problem = Problem.model_json_schema()
    yield from (f"PROBLEM {line}" for line in Fields(problem, answers=True).lines(problem))
    yield from (f"ERROR {code} {status}" for code, status in STATUS.items())


def console() -> Iterator[str]:
    """Yield the console's routes, the parameters of its views, and the fields of forms that carry files."""
    for operation, facts in operations().items():
        if _is_console(operation):
            yield operation
            yield from (f"{operation} {fact}" for fact in facts if fact.startswith(_TAKEN))
    for name, view in live.VIEWS.items():
        if not view.fragments.__module__.startswith("pipeline."):
            continue  # a test's
        parameters = view.query.model_json_schema()
        yield from (f"VIEW {name} {line}" for line in Fields(parameters).lines(parameters))
    for template in _TEMPLATES.rglob("*.html"):
        for action, form in _FORM.findall(template.read_text(encoding="utf-8")):
            yield from (f"FORM {action} {field}" for field in _FIELD.findall(form))
