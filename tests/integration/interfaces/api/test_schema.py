"""Schemathesis checks that answers to generated requests conform to the API's OpenAPI document.

A run checks an eighth of the operations, unless all tests run.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.interfaces import compatibility as compat
from pipeline.interfaces import rest as v1
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support.documents import insert_document
from tests.support.knowledge import add_base, add_item
from tests.support.rotation import Rotation

EXAMPLES = 2
"""Examples for each operation. Thousands found no further defect; raise the number after larger changes."""
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = {"/api/v1/events"}


@dataclass(frozen=True)
class RotatedOperation:
    """An operation of the OpenAPI document, as a part of the rotation."""

    operation: Any
    pinned = False

    @property
    def name(self) -> str:
        return f"{self.operation.method} {self.operation.path}"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__REQUESTS_PER_MIN": "0", "PENSTOCK_API__MAX_SYNC_WAIT_S": "0.01"}


@pytest.fixture
def known(context: Context) -> dict[str, Callable[[], Any]]:
    """Functions that return an existing id, by the name of the path's parameter."""
    base = add_base(context)
    return {
        "document_id": lambda: insert_document(
            context, DocumentStatus.PARTIAL_FAILED, [PageStatus.COMPLETED, PageStatus.FAILED]
        ),
        "page": lambda: 1,
        "base_id": lambda: base,
        "item_id": lambda: add_item(context, base),
    }


def send(client: TestClient, case: Any) -> Any:
    for name, value in (case.query or {}).items():
        if name == "wait" and isinstance(value, int | float) and 0 < value <= 60:
            case.query["wait"] = 0
    prepared: Any = requests.Request(**case.as_transport_kwargs(base_url="http://127.0.0.1")).prepare()
    replaced = {"content-length", "authorization", "x-api-key", "host"}
    headers = {name: value for name, value in prepared.headers.items() if name.lower() not in replaced}
    answer = client.request(prepared.method or "", prepared.url or "", content=prepared.body, headers=headers)
    assert answer.status_code != 500, answer.text
    return answer


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_operation_conforms_to_the_openapi_document(
    connect: Connect, known: dict[str, Callable[[], Any]], mode: GenerationMode, rotation: Rotation
) -> None:
    client = connect(Scope.ADMIN, host="0.0.0.0")
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    failures: dict[str, str] = {}
    count = 0
    rotated = (RotatedOperation(result.ok()) for result in schema.get_all_operations())  # type: ignore[union-attr]  # or it raises
    for operation in (result.operation for result in rotation.of(rotated) if result.operation.path not in ENDLESS):
        try:
            strategy = operation.as_strategy(generation_mode=mode)

            @hypothesis.seed(1)
            @hypothesis.settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=False,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            )
            @given(case=strategy)
            def run(case: Any) -> None:
                nonlocal count
                count += 1
                for name in list(case.path_parameters or {}):
                    if count % 2 and name in known and mode is GenerationMode.POSITIVE:
                        case.path_parameters[name] = known[name]()
                case.validate_response(send(client, case), checks=CHECKS)

            run()
        except Unsatisfiable:  # the operation has no parameters to vary
            pass
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # the test reports all at its end
            failures[f"{operation.method} {operation.path}"] = f"{type(error).__name__}: {error}"[:1100]
    assert not failures, "\n\n".join(f"{name}: {message}" for name, message in failures.items())


def test_every_json_body_is_read_in_its_caller_s_turn() -> None:
    routes = [route for router in (*v1.ROUTERS, *compat.ROUTERS) for route in router.routes]
    bodies = [route for route in routes if isinstance(route, APIRoute) and route.body_field]
    assert len(bodies) > 20
    assert [route.path for route in bodies if not isinstance(route, JsonRoute)] == []
    assert [route.path for route in bodies if route._embed_body_fields] == [], "the body is the model itself"


def test_without_a_key_only_health_and_version_are_answered(connect: Connect) -> None:
    client = connect(host="0.0.0.0")
    document = connect(Scope.READ, host="0.0.0.0").get("/openapi.json").json()
    public = set()
    for path, methods in document["paths"].items():
        for method in methods:
            answer = client.request(method, re.sub(r"\{[^}]*\}", "1", path))
            if answer.status_code != 401:
                public.add((path, answer.status_code))
    assert public == {(path, 200) for path in ("/healthz", "/readyz", "/livez", "/ready", "/health", "/version")}
