"""The log of events, and webhooks with their deliveries, through their pages."""

from sqlalchemy import update
from starlette.testclient import TestClient

from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.webhooks import plan
from pipeline.flows.webhooks.models import DELIVERIES
from pipeline.flows.webhooks.states import DeliveryStatus
from pipeline.interfaces.console import live
from pipeline.interfaces.console.screens.events import EventsQuery
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tasks import documents, webhooks
from tests.integration.interfaces.api.conftest import Connect
from tests.support.documents import insert_document

PAGE = {"accept": "text/html"}
LOG, HOOKS, SENT = "/console/events", "/console/events/webhooks", "/console/events/deliveries"
HOSTILE = "<img src=x onerror=alert(1)>.pdf"
URL = "https://desk.example.com/hook"


def paused(context: Context, filename: str = "report.pdf") -> str:
    document_id = insert_document(context, DocumentStatus.PENDING, filename=filename)
    documents.pause(document_id)
    return document_id


def sent(client: TestClient, path: str, **fields: object) -> str:
    """Return the message of an action."""
    answer = client.post(path, data=fields, headers={**PAGE, "hx-request": "true"})
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_log_is_newest_first_filtered_and_escaped(context: Context, api: TestClient) -> None:
    assert "No events yet" in api.get(LOG, headers=PAGE).text
    first, second = paused(context), paused(context, HOSTILE)
    documents.cancel(first)
    text = api.get(LOG, headers=PAGE).text
    assert text.index('id="event-3"') < text.index('id="event-2"') < text.index('id="event-1"')
    assert HOSTILE not in text
    assert f"/console/documents/{second}" in text
    assert "&#34;type&#34;: &#34;document.cancelled&#34;" in text
    assert 'id="event-2"' not in api.get(LOG, params={"type": "document.cancelled"}, headers=PAGE).text
    about = api.get(LOG, params={"scope": second, "flow": "", "type": "document.*"}, headers=PAGE).text
    assert ('id="event-2"' in about, 'id="event-3"' in about) == (True, False)
    assert "No event matches" in api.get(LOG, params={"flow": "music"}, headers=PAGE).text
    assert "document.cancelled" in api.get(f"{LOG}/log/3", headers=PAGE).text
    assert api.get(f"{LOG}/log/4", headers=PAGE).status_code == 404


def test_the_log_moves_with_the_events_that_match(context: Context) -> None:
    view, query = live.VIEWS["events"], EventsQuery(type="document.paused")
    assert view.matches(query).types == ("document.paused",)
    paused(context)
    assert 'id="event-1"' in view.fragments(context, query)["event-list"]


def test_older_events_have_pages(context: Context, api: TestClient) -> None:
    for _ in range(51):
        paused(context)
    first = api.get(LOG, headers=PAGE).text
    assert 'id="event-1"' not in first
    cursor = first.partition("cursor=")[2].partition('"')[0]
    second = api.get(f"{LOG}?cursor={cursor}", headers=PAGE).text
    assert 'id="event-1"' in second
    assert "hx-sse:connect" not in second


def test_an_endpoint_is_added_and_its_secret_is_shown_once(context: Context, api: TestClient) -> None:
    assert "Add an endpoint" in api.get(HOOKS, headers=PAGE).text
    form = {"url": URL, "types": ["document.completed", "music_run.*"], "description": "the desk"}
    created = api.post(HOOKS, data=form, headers=PAGE)
    assert (created.status_code, created.headers["cache-control"]) == (201, "no-store")
    assert "whsec_" in created.text
    [endpoint] = webhooks.endpoints()
    assert endpoint.types == ["document.completed", "music_run.*"]
    for path in (HOOKS, f"{HOOKS}/{endpoint.id}", SENT):
        assert "whsec_" not in api.get(path, headers=PAGE).text
    refused = api.post(HOOKS, data={"url": "ftp://x"}, headers={**PAGE, "hx-request": "true"})
    assert refused.status_code == 422
    assert "needs a URL" in refused.text


def test_an_endpoint_is_changed_tested_disabled_and_deleted(context: Context, api: TestClient) -> None:
    at = f"{HOOKS}/{webhooks.create(URL, ['document.*']).endpoint.id}"
    assert "is changed" in sent(api, at, url=f"{URL}/two", types=["document.failed"], description="")
    page = api.get(at, headers=PAGE).text
    assert 'value="document.failed" checked' in page
    assert "is on its way" in sent(api, f"{at}/test")
    assert "receives nothing" in sent(api, f"{at}/disable")
    assert "disabled" in api.get(HOOKS, headers=PAGE).text
    assert "from now on" in sent(api, f"{at}/enable")
    assert "0 events" in sent(api, f"{at}/replay", hours=24)
    answer = api.post(f"{at}/delete", headers={**PAGE, "hx-request": "true"})
    assert answer.headers["hx-redirect"] == HOOKS
    assert webhooks.endpoints() == []


def test_deliveries_are_listed_with_their_attempts_and_replayed(context: Context, api: TestClient) -> None:
    assert "No deliveries yet" in api.get(SENT, headers=PAGE).text
    endpoint = webhooks.create(URL).endpoint.id
    for _ in range(3):
        paused(context)
    plan.due(context)
    failed = {"status": DeliveryStatus.FAILED, "error": HOSTILE}
    context.db.run(lambda session: session.execute(update(DELIVERIES).where(DELIVERIES.c.id != 1).values(**failed)))
    page = api.get(SENT, headers=PAGE).text
    assert "Failed 2" in page
    assert HOSTILE not in page
    assert 'id="delivery-1"' not in api.get(SENT, params={"status": "failed", "endpoint": ""}, headers=PAGE).text
    waiting = api.get(f"{SENT}/1", headers=PAGE).text
    assert "No attempt yet" in waiting
    assert "every 3s" in waiting
    assert "every 3s" not in api.get(f"{SENT}/2", headers=PAGE).text, "it has ended"
    assert "sent again" in sent(api, f"{SENT}/2/replay")
    assert "1 delivery will be sent again" in sent(api, f"{SENT}/replay", endpoint=endpoint)
    assert "No delivery" in sent(api, f"{SENT}/replay", endpoint="")


def test_actions_beyond_a_keys_scope_are_not_offered(context: Context, connect: Connect) -> None:
    endpoint = webhooks.create(URL).endpoint.id
    reads, writes = connect(Scope.READ), connect(Scope.WRITE)
    page = reads.get(f"{HOOKS}/{endpoint}", headers=PAGE).text
    for offered in ("Send a test", "Delete", "Edit"):
        assert offered not in page
    assert "Send a test" in writes.get(f"{HOOKS}/{endpoint}", headers=PAGE).text
