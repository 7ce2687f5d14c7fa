"""Dify's external knowledge, with Dify's requests."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.flows.knowledge.states import ItemType
from pipeline.storage.context import Context
from tests.support.knowledge import add_base
from tests.support.knowledge_texts import publish

SEA = ["The harbour wakes before the town.", "Its lantern is lit at dusk.", "Nobody sails in a storm."]


@pytest.fixture
def base(context: Context) -> str:
    base_id = add_base(context, "sea")
    publish(context, base_id, SEA, heading=["Coast", "Ports"], title="On the sea", name="sea.pdf", type=ItemType.FILE)
    return base_id


def query_body(knowledge_id: str, query: str, **setting: Any) -> dict[str, Any]:
    return {"knowledge_id": knowledge_id, "query": query, "retrieval_setting": {"top_k": 3, **setting}}


def test_records_have_content_score_title_and_place(api: TestClient, base: str) -> None:
    records = api.post("/retrieval", json=query_body(base, "lantern", score_threshold=0.0)).json()["records"]
    first = records[0]
    assert (first["content"], first["score"], first["title"]) == (SEA[1], 1.0, "On the sea")
    assert (first["metadata"]["source"], first["metadata"]["page"]) == ("sea.pdf", 2)
    assert first["metadata"]["heading"] == "Coast > Ports"
    assert all(None not in record["metadata"].values() for record in records)


def test_a_base_may_be_given_by_name_and_limits_hold(api: TestClient, base: str) -> None:
    records = api.post("/retrieval", json=query_body("sea", "the", top_k=1)).json()["records"]
    assert len(records) == 1
    assert api.post("/retrieval", json=query_body("sea", "zeppelin", score_threshold=1)).json() == {"records": []}
    for setting in ({"top_k": 0}, {"top_k": 10_000}, {"score_threshold": 2}):
        assert api.post("/retrieval", json=query_body("sea", "the", **setting)).status_code == 422


def test_unknown_bases_and_conditions_are_refused_with_a_reason_that_dify_shows(api: TestClient, base: str) -> None:
    unknown = api.post("/retrieval", json=query_body("land", "lantern"))
    assert (unknown.status_code, unknown.json()["error_code"]) == (404, 2001)
    assert "land" in unknown.json()["error_msg"]
    condition = {"conditions": [{"name": ["page"], "comparison_operator": "is", "value": "2"}]}
    refused = api.post("/retrieval", json={**query_body(base, "lantern"), "metadata_condition": condition})
    assert refused.status_code == 422
    assert api.post("/retrieval", json={**query_body(base, "lantern"), "metadata_condition": None}).status_code == 200
    assert api.post("/retrieval", json=query_body(base, " ")).status_code == 422
