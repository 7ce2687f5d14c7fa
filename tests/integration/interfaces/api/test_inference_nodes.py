"""`/api/v1/nodes`, `/jobs`, `/dlq` and `/gateway` for operators."""

import pytest
from starlette.testclient import TestClient

from pipeline.interfaces.api.app import PREFIX
from pipeline.nodes import names, service, tokens
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tests.integration.interfaces.api.test_skeleton import problem
from tests.support.node_state import NodeStateDriver

NODES, JOBS, DLQ = f"{PREFIX}/nodes", f"{PREFIX}/jobs", f"{PREFIX}/dlq"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_GATEWAY__DLQ_MIN_IDLE_MS": "1", "PENSTOCK_GATEWAY__STREAM_BLOCK_MS": "10"}


@pytest.fixture
def state(context: Context) -> NodeStateDriver:
    """An instance with a node that works on a job."""
    driver = NodeStateDriver(context)
    driver.instance("a", nodes=1, sessions=1)
    token = tokens.create(context, "desk", TokenKind.NODE)[1]
    driver.node("n", "a", token_id=token.id, used=1)
    driver.job("job", "a", node_id="n")
    return driver


def test_tokens_are_made_once_listed_and_revoked(api: TestClient, context: Context) -> None:
    created = api.post(f"{NODES}/tokens", json={"name": "rack 3", "node_id": "rack-3", "expires_days": 90})
    assert (created.status_code, created.headers["cache-control"]) == (201, "no-store")
    token, secret = created.json()["token"], created.json()["secret"]
    authenticated = tokens.authenticate(context, secret, TokenKind.NODE)
    assert authenticated is not None
    assert (authenticated.id, authenticated.node_id) == (token["id"], "rack-3")
    assert authenticated.expires_at is not None
    listed = api.get(f"{NODES}/tokens")
    assert [item["name"] for item in listed.json()["items"]] == ["rack 3"]
    assert secret not in listed.text
    assert api.post(f"{NODES}/tokens/{token['id']}/revoke").json()["revoked_at"]
    assert tokens.authenticate(context, secret) is None
    problem(api.post(f"{NODES}/tokens/{'0' * 16}/revoke"), 404, "unknown_token")
    for wrong in ({"name": ""}, {"name": "x", "kind": "owner"}, {"name": "x", "node_id": "a b"}, {"name": "x" * 101}):
        problem(api.post(f"{NODES}/tokens", json=wrong), 422, "invalid")


def test_nodes_are_shown_drained_and_revoked(api: TestClient, state: NodeStateDriver) -> None:
    (node,) = api.get(NODES).json()["items"]
    assert (node["node_id"], node["status"], node["token"], node["jobs"]) == ("n", "connected", "desk", [])
    assert node["offers"] == [{"capability": "text", "models": ["m"]}]
    assert api.get(f"{NODES}/n").json()["jobs"] == ["job"]
    assert api.post(f"{NODES}/n/drain", json={"reason": "painting"}).status_code == 202
    assert [message.body["reason"] for message in state.messages("a")] == ["painting"]
    revoked = api.post(f"{NODES}/n/revoke").json()
    assert (revoked["was_connected"], revoked["tokens"], revoked["shared_token"]["name"]) == (True, [], "desk")
    assert [message.kind for message in state.messages("a")] == ["close_node"]
    for answer in (api.get(f"{NODES}/x"), api.post(f"{NODES}/x/drain"), api.post(f"{NODES}/x/revoke")):
        problem(answer, 404, "unknown_node")


def test_a_name_is_freed_when_its_node_has_gone(api: TestClient, context: Context, state: NodeStateDriver) -> None:
    token = tokens.create(context, "rack", TokenKind.NODE)[1]
    for node_id in ("n", "rack-3"):
        names.take(context, node_id, token, 2)
    problem(api.post(f"{NODES}/n/free"), 409, "node_connected")
    assert api.post(f"{NODES}/rack-3/free").status_code == 204
    problem(api.post(f"{NODES}/rack-3/free"), 404, "unknown_node")
    assert list(names.all_names(context)) == ["n"]


def test_jobs_are_listed_and_cancelled(api: TestClient, state: NodeStateDriver) -> None:
    (job,) = api.get(JOBS, params={"state": "DISPATCHED"}).json()["items"]
    assert (job["job_id"], job["node_id"], job["instance_id"]) == ("job", "n", "a")
    assert api.get(JOBS, params={"state": "RUNNING"}).json()["items"] == []
    problem(api.get(JOBS, params={"state": "EATEN"}), 422, "invalid")
    assert api.get(f"{JOBS}/job").json() == job
    assert api.post(f"{JOBS}/job/cancel").status_code == 202
    assert [message.kind for message in state.messages("a")] == ["cancel_job"]
    problem(api.post(f"{JOBS}/nothing/cancel"), 404, "unknown_job")


def test_dead_letters_are_replayed_and_dropped(api: TestClient, state: NodeStateDriver, context: Context) -> None:
    for number in ("one", "two"):
        state.dead_letter("a", "assign", job_id=number)
    service.tend(context)
    letters = {letter["body"]["job_id"]: f"{DLQ}/a/{letter['id']}" for letter in api.get(DLQ).json()["items"]}
    assert api.get(f"{PREFIX}/gateway").json()["dead_letters"] == 2
    assert api.post(f"{letters['one']}/replay").status_code == 204
    assert api.delete(letters["two"]).status_code == 204
    assert [letter.body for letter in state.messages("a")] == [{"job_id": "one"}]
    problem(api.delete(letters["two"]), 404, "unknown_letter")


def test_the_status_of_the_gateway_is_summed_up(api: TestClient, state: NodeStateDriver) -> None:
    gateway = api.get(f"{PREFIX}/gateway").json()
    assert [
        (instance["instance_id"], instance["alive"], instance["sessions"]) for instance in gateway["instances"]
    ] == [("a", True, 1)]
    assert (gateway["nodes"]["connected"], gateway["slots"], gateway["used"], gateway["jobs"]["DISPATCHED"]) == (
        1,
        2,
        1,
        1,
    )
