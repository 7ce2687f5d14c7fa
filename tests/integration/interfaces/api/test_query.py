"""Every route refuses unknown query parameters instead of ignoring them."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.interfaces.api.app import create_app
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect

DOCUMENTS = "/api/v1/documents"
STRANGE = "no-such-parameter"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__REQUESTS_PER_MIN": "0", "PENSTOCK_API__FETCH": "true"}


def _detail(answer: Any) -> str:
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid"
    return str(answer.json()["detail"])


def test_an_unknown_query_parameter_is_refused_on_every_route(connect: Connect, context: Context) -> None:
    client = connect(Scope.ADMIN)
    walked = 0
    for path, operations in create_app(context).openapi()["paths"].items():
        address = path
        for name in ("document_id", "base_id", "item_id"):
            address = address.replace(f"{{{name}}}", "ab12")
        while "{" in address:
            before, _, rest = address.partition("{")
            address = f"{before}1{rest.partition('}')[2]}"
        for method in operations:
            answer = client.request(method, address, params={STRANGE: "1"}, headers={"accept": "application/json"})
            assert f"query.{STRANGE}: unknown parameter" in _detail(answer), (method, path)
            walked += 1
    assert walked > 150


@pytest.mark.parametrize("known", [DOCUMENTS, "/knowledge-bases", "/api/v1/calls?status=ok&limit=1"])
def test_known_parameters_pass(api: TestClient, known: str) -> None:
    assert api.get(known).status_code in {200, 422}
    assert "unknown parameter" not in api.get(known).text


def test_an_error_suggests_the_nearest_name(api: TestClient) -> None:
    assert "did you mean limit?" in _detail(api.get(f"{DOCUMENTS}?limt=3"))


@pytest.mark.parametrize(
    ("address", "field"),
    [
        (DOCUMENTS, "provider"),
        ("/api/v1/screenshots", "app"),
        ("/v1/convert/file", "page_range"),
        ("/file_parse", "provider"),
        ("/api/v1/knowledge-bases/ab12/items", "groupName"),
    ],
)
def test_a_field_of_the_form_in_the_query_is_refused_by_name_before_the_file_is_taken(
    api: TestClient, context: Context, address: str, field: str
) -> None:
    answer = api.post(f"{address}?{field}=local", files={"file": ("a.pdf", b"%PDF-1.4 secret")})
    assert f"{field} is a form field: send it as -F {field}=…" in _detail(answer)
    assert api.get(DOCUMENTS).json()["items"] == []


def test_a_field_of_the_body_in_the_query_is_refused_by_name(api: TestClient) -> None:
    answer = api.post(f"{DOCUMENTS}/url?provider=local", json={"url": "http://example.org/a.pdf"})
    assert "provider is a field of the JSON body: send it there" in _detail(answer)


def test_a_file_as_the_body_has_its_options_in_the_query(api: TestClient) -> None:
    raw: dict[str, Any] = {"content": b"no PDF", "headers": {"content-type": "application/pdf"}}
    assert "unknown parameter; did you mean provider?" in _detail(api.post(f"{DOCUMENTS}?provder=local", **raw))
    assert "parameter" not in api.post(f"{DOCUMENTS}?provider=local", **raw).text
