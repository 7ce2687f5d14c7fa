"""`/api/v1/webhooks` for other programs."""

from datetime import timedelta

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus
from pipeline.flows.webhooks import plan
from pipeline.flows.webhooks.models import DELIVERIES as DELIVERY_ROWS
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.storage.context import Context
from pipeline.storage.idempotency import REQUESTS
from tests.support.documents import insert_document

ENDPOINTS, DELIVERIES = "/api/v1/webhooks/endpoints", "/api/v1/webhooks/deliveries"
NEW = {"url": "https://example.com/hook", "types": ["document.*"]}


def changes(context: Context, count: int) -> None:
    for _ in range(count):
        document_id = insert_document(context, DocumentStatus.PENDING)
        where = DOCUMENTS.c.id == document_id
        context.db.run(lambda session, where=where: DOCUMENT.move(session, DOCUMENTS, DocumentEvent.PAUSE, where))


def test_an_endpoint_is_created_changed_and_deleted_and_its_secret_is_shown_once(
    context: Context, api: TestClient
) -> None:
    created = api.post(ENDPOINTS, json=NEW)
    assert created.status_code == 201
    endpoint, secret = created.json()["endpoint"], created.json()["secret"]
    assert secret.startswith("whsec_")
    url = f"{ENDPOINTS}/{endpoint['id']}"
    assert api.get(ENDPOINTS).json()["items"] == [api.get(url).json()] == [endpoint]
    assert api.patch(url, json={"active": False}).json()["disabled_because"] == "by hand"
    assert api.post(f"{url}/test").status_code == 409
    assert api.patch(url, json={"active": True, "types": []}).json()["types"] == []
    assert api.post(f"{url}/test").json()["type"] == "webhook.test"
    assert secret not in api.get(ENDPOINTS).text + api.get(DELIVERIES).text
    assert "document.completed" in api.get("/api/v1/webhooks/types").json()
    assert api.delete(url).status_code == 204
    assert api.get(url).status_code == api.delete(url).status_code == api.get(f"{DELIVERIES}/1").status_code == 404


def test_a_secret_is_not_kept_with_the_answer_to_an_idempotent_request(context: Context, api: TestClient) -> None:
    created = api.post(ENDPOINTS, json=NEW, headers={"Idempotency-Key": "once"})
    assert created.json()["secret"].startswith("whsec_")
    with context.db.read() as session:
        assert session.execute(select(REQUESTS)).all() == []


def test_deliveries_are_listed_by_pages_and_replayed(context: Context, api: TestClient) -> None:
    endpoint_id = api.post(ENDPOINTS, json=NEW).json()["endpoint"]["id"]
    changes(context, 5)
    plan.due(context)
    first = api.get(DELIVERIES, params={"limit": 3, "endpoint": endpoint_id, "status": "pending"}).json()
    second = api.get(DELIVERIES, params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [delivery["seq"] for delivery in first["items"] + second["items"]] == [5, 4, 3, 2, 1]
    assert second["next_cursor"] is None
    delivery = f"{DELIVERIES}/{first['items'][0]['id']}"
    assert api.post(f"{delivery}/replay").status_code == 202
    assert api.get(delivery).json()["status"] == "pending"
    assert api.get(f"{delivery}/attempts").json()["items"] == []
    since = (context.db.now() - timedelta(hours=1)).isoformat()
    assert api.post(f"{ENDPOINTS}/{endpoint_id}/replay", json={"since": since}).json() == {"replayed": 5}


def test_failed_deliveries_are_replayed_to_one_or_all_active_endpoints(context: Context, api: TestClient) -> None:
    first, second, off = (api.post(ENDPOINTS, json=NEW).json()["endpoint"]["id"] for _ in range(3))
    changes(context, 3)
    plan.due(context)
    context.db.run(lambda session: session.execute(update(DELIVERY_ROWS).values(status=DeliveryStatus.FAILED)))
    api.patch(f"{ENDPOINTS}/{off}", json={"active": False})
    assert api.post(f"{DELIVERIES}/replay", params={"endpoint": first}).json() == {"replayed": 3}
    assert api.post(f"{DELIVERIES}/replay").json() == {"replayed": 3}
    assert api.post(f"{DELIVERIES}/replay").json() == {"replayed": 0}
    still = api.get(DELIVERIES, params={"status": "failed"}).json()["items"]
    assert {delivery["endpoint_id"] for delivery in still} == {off}
    assert api.get(DELIVERIES, params={"endpoint": second, "status": "pending"}).json()["items"]
    counts = api.get(f"{DELIVERIES}/counts").json()
    assert counts == {"pending": 6, "sending": 0, "delivered": 0, "failed": 3}
    assert api.get(f"{DELIVERIES}/counts", params={"endpoint": off}).json()["failed"] == 3
    assert api.post(f"{DELIVERIES}/replay", params={"endpoint": off}).status_code == 409
    assert api.post(f"{DELIVERIES}/replay", params={"endpoint": "ep_0"}).status_code == 404


@pytest.mark.parametrize(
    "new", [{"url": "ftp://x"}, {"url": "https://a:b@x/"}, {**NEW, "types": ["eaten"]}, {**NEW, "secret": "x"}, {}]
)
def test_an_invalid_endpoint_is_refused(context: Context, api: TestClient, new: dict[str, object]) -> None:
    assert api.post(ENDPOINTS, json=new).status_code == 422
    assert api.get(ENDPOINTS).json()["items"] == []
