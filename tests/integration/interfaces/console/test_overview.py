"""The overview: work, reasons for waiting, workers and failures."""

import json
import re
from datetime import timedelta

import pytest
from sqlalchemy import insert
from starlette.testclient import TestClient

from pipeline.engine.presence import Presence, sweep_ended
from pipeline.flows.documents.models import ATTEMPTS
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.interfaces.console.screens.overview import OverviewQuery, fragments
from pipeline.providers import queue_control
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support.documents import insert_document
from tests.support.redis_server import RedisServer

PAGE = {"accept": "text/html"}
HOSTILE = "<img src=x onerror=alert(1)>"
WAITING, FAILED, DONE = PageStatus.PENDING, PageStatus.FAILED, PageStatus.COMPLETED


@pytest.fixture
def settings_env() -> dict[str, str]:
    provider = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "daily_spend_cap": 5}
    return {"PENSTOCK_PROVIDERS": json.dumps({"openai": provider})}


def page(client: TestClient) -> str:
    answer = client.get("/console/", headers=PAGE)
    assert answer.status_code == 200, answer.text
    return answer.text


def words(html: str) -> str:
    """Return the text of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_a_new_installation_shows_the_first_steps(api: TestClient) -> None:
    shown = page(api)
    assert "Drop a PDF" in shown
    assert "Add files" in shown
    assert "No page was converted." in shown
    assert "No failures" in shown


def test_a_reader_is_not_offered_to_add_files(connect: Connect) -> None:
    reader = connect(Scope.READ, host="0.0.0.0")
    assert "Add files" not in page(reader)


def test_waiting_work_is_shown_with_its_reason_and_its_end(api: TestClient, context: Context) -> None:
    insert_document(context, pages=[WAITING, WAITING, DONE], provider="openai")
    insert_document(context, pages=[WAITING])
    queue_control.pause(context, "vision.openai", 600, "invoices first")
    Presence(context.redis).renew(
        "cpu@desk:42:1f09ab", 60, facts={"slots": 4, "queues": ["cpu"], "since_ms": 1_795_341_600_000}
    )
    sweep_ended(context.redis)
    shown = words(page(api))
    assert "Waiting 3 units" in shown
    assert "2 pages vision.openai is paused by an operator: “invoices first” resumes in 9 min" in shown
    assert "1 page for a free worker" in shown
    assert "1 alive 1 cpu · 0 of 4 busy" in shown
    assert "Swept less than a minute ago" in shown


def test_figures_failures_and_lists_are_links_and_hostile_names_are_text(api: TestClient, context: Context) -> None:
    failed = insert_document(
        context, DocumentStatus.PARTIAL_FAILED, [DONE, FAILED], filename=HOSTILE, updated_at=context.db.now()
    )
    with context.db.transaction() as session:
        row = {
            "document_id": failed,
            "page": 1,
            "page_source": 1,
            "provider": "local",
            "model": "m",
            "worker_id": "w",
            "latency_ms": 1400,
            "created_at": context.db.now() - timedelta(minutes=3),
        }
        session.execute(insert(ATTEMPTS), [row | {"status": "completed"}, row | {"status": "permanent"}])
    shown = page(api)
    assert HOSTILE not in shown
    assert f'href="/console/documents/{failed}"' in shown
    assert "1 of 2 pages failed: it failed" in shown
    assert 'href="/console/documents?state=' in shown
    assert "2 pages" in words(shown)
    assert re.search(r"<title>\d\d:\d\d UTC: 2 pages, 1 failed</title>", shown)
    assert "1 failed permanently in the last hour." in words(shown)


def test_the_cost_of_calls_without_a_price_is_unknown(api: TestClient, context: Context) -> None:
    shown = words(page(api).partition('id="overview-spending"')[2].partition("</article>")[0])
    assert "unknown of $5.00" in shown
    assert "its model has no price" in shown
    assert "$0.00" not in shown


def test_failures_raise_an_alarm_for_an_hour(api: TestClient, context: Context) -> None:
    long_ago = context.db.now() - timedelta(hours=2)
    insert_document(context, DocumentStatus.FAILED, [FAILED], filename="old.pdf", updated_at=long_ago)
    assert 'role="alert"' not in page(api)
    insert_document(context, DocumentStatus.FAILED, [FAILED], filename=HOSTILE, updated_at=context.db.now())
    alarm = page(api).partition('role="alert"')[2].partition("</p>")[0]
    assert "1 failed permanently in the last hour" in alarm
    assert "&lt;img" in alarm


def test_only_changed_parts_differ_and_none_depends_on_the_caller(api: TestClient, context: Context) -> None:
    page(api)
    before = fragments(context, OverviewQuery())
    assert all(f'id="{name}"' in html for name, html in before.items())
    insert_document(context, pages=[WAITING])
    after = fragments(context, OverviewQuery())
    assert {name for name in after if after[name] != before[name]} >= {"overview-waiting", "overview-flows"}
    assert after["overview-failures"] == before["overview-failures"]
    assert not any("<form" in html or "<button" in html for html in after.values())


def test_while_redis_is_down_the_page_says_so(api: TestClient, context: Context, redis_server: RedisServer) -> None:
    insert_document(context, pages=[WAITING])
    redis_server.kill()
    shown = words(page(api))
    assert "? Redis is down" in shown
    assert "Redis is down: `penstock up` starts it" in shown
