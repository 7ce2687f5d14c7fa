"""`/api/v1/keys`: a new key shows its secret once, lists show none, and a revoked key ends at once."""

from starlette.testclient import TestClient

from pipeline.interfaces.api.app import PREFIX
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_skeleton import problem

KEYS = f"{PREFIX}/keys"


def test_a_key_is_made_used_and_revoked(api: TestClient, connect: Connect) -> None:
    created = api.post(KEYS, json={"name": "laptop", "scope": "read", "expires_days": 90})
    assert (created.status_code, created.headers["cache-control"]) == (201, "no-store")
    key, secret = created.json()["key"], created.json()["secret"]
    assert (key["name"], key["scope"], key["revoked_at"]) == ("laptop", "read", None)
    assert key["expires_at"] > key["created_at"]
    bearer = {"authorization": f"Bearer {secret}"}
    away = connect(host="0.0.0.0")
    assert away.get(f"{PREFIX}/documents", headers=bearer).status_code == 200
    problem(away.post(KEYS, headers=bearer, json={"name": "more"}), 403, "forbidden")
    listed = api.get(KEYS)
    assert [item["id"] for item in listed.json()["items"]] == [key["id"]]
    assert listed.json()["items"][0]["last_used_at"]
    assert secret not in listed.text
    ended = api.post(f"{KEYS}/{key['id']}/revoke").json()
    assert ended["revoked_at"]
    problem(away.get(f"{PREFIX}/documents", headers=bearer), 401, "unauthorized")
    assert api.post(f"{KEYS}/{key['id']}/revoke").json() == ended, "harmless"


def test_invalid_keys_are_refused(api: TestClient) -> None:
    for wrong in (
        {},
        {"name": ""},
        {"name": " "},
        {"name": "x" * 101},
        {"name": "a\x1b[2J"},
        {"name": "x", "scope": "owner"},
        {"name": "x", "expires_days": 0},
        {"name": "x", "expires_days": 1e9},
        {"name": "x", "secret": "mine"},
    ):
        problem(api.post(KEYS, json=wrong), 422, "invalid")
    problem(api.post(f"{KEYS}/{'0' * 16}/revoke"), 404, "unknown_key")
    assert api.get(KEYS).json()["items"] == []
