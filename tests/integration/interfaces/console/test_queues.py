"""Queues, breakers, workers and nodes: their screens, their buttons, and the rights to press them."""

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.engine.presence import Presence, sweep_ended
from pipeline.flows.documents.states import PageStatus
from pipeline.interfaces.console.screens import workers
from pipeline.interfaces.console.screens.queues import QueueQuery, QueuesQuery, all_queues, one_queue
from pipeline.nodes import tokens
from pipeline.providers import gates, queue_control
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tasks import flow as _flow  # noqa: F401  # the first change of a gate would load it, while a countdown runs
from tasks import queues as control
from tests.integration.interfaces.api.conftest import Connect
from tests.support.documents import insert_document

QUEUES, QUEUE = "/console/queues", "/console/queues/vision.openai"
PAGE = {"accept": "text/html"}
BROWSER = {**PAGE, "origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def settings_env() -> dict[str, str]:
    provider = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "limits": "3/min, 5000 tokens/min"}
    return {"PENSTOCK_PROVIDERS": json.dumps({"openai": provider})}


def page(client: TestClient, path: str = QUEUES) -> str:
    answer = client.get(path, headers=PAGE)
    assert answer.status_code == 200, answer.text
    return answer.text


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def press(client: TestClient, path: str, **fields: Any) -> str:
    """Press a button, and return the message of the page."""
    answer = client.post(path, data=fields, headers=BROWSER, follow_redirects=True)
    assert answer.status_code == 200, answer.text
    match = re.search(r'<div id="said".*?</div>', answer.text, re.DOTALL)
    assert match is not None
    return words(match[0])


def state(context: Context) -> str:
    """Return the state of the queue that every console receives."""
    return words(all_queues(context, QueuesQuery())["queue-vision-openai-state"])


def test_a_queue_is_paused_for_a_time_and_the_reason_is_shown_until_it_is_resumed(
    api: TestClient, context: Context
) -> None:
    assert "vision.openai" in page(api)
    assert state(context) == "flowing idle"
    message = press(api, f"{QUEUE}/pause", minutes="10", reason=f"invoices first {HOSTILE}")
    assert message.startswith("vision.openai is paused for 10 min. Calls in flight finish; nothing is lost.")
    assert state(context) == (
        "paused by an operator, resumes in 9 min : “invoices first &lt;img src=x onerror=alert(1)&gt; (by testclient)”"
    )
    assert HOSTILE not in page(api)
    assert "1 closed" in words(page(api))
    assert "no longer paused" in press(api, f"{QUEUE}/resume")
    assert "until it is resumed" in press(api, f"{QUEUE}/pause", minutes="", reason="")
    assert state(context) == "paused by an operator until it is resumed: “by testclient”"
    assert "is drained and paused" in press(api, f"{QUEUE}/drain")
    assert state(context).endswith("“drained (by testclient)”")


def test_windows_fill_and_a_queue_at_its_limit_shows_the_time_of_the_next_call(
    api: TestClient, context: Context
) -> None:
    insert_document(context, pages=[PageStatus.PENDING] * 5, provider="openai")
    gate = gates.gate(context, "vision.openai")
    queue_control.change_setting(context, "queue.vision.openai.concurrency", "4")
    assert [gate.stamp(str(number), 1, 100).granted for number in range(3)] == [True] * 3
    shown = one_queue(context, QueueQuery(queue="vision.openai"))
    assert "at its limit openai: 3/min is used up; next in" in words(shown["queue-vision-openai-state"])
    assert '<progress class="bar waiting" value="3" max="3"' in shown["queue-vision-openai-windows"]
    assert "300 of 5,000 tokens/min · all of openai" in words(shown["queue-vision-openai-windows"])
    assert words(shown["queue-vision-openai-flight"]) == "3 of 4"
    assert "5 pages" in words(shown["queue-vision-openai-waiting"])
    assert "at its limit" in page(api, QUEUE)


def test_a_breaker_is_closed_and_opened_by_hand_and_its_history_is_kept(api: TestClient, context: Context) -> None:
    queue_control.open_breaker(context, "openai:vision", 41, "5 failures in a row: 503")
    assert re.fullmatch(r"closed by breaker 5 failures in a row: 503; a probe in (40|41) s", state(context)), state(
        context
    )
    shown = words(page(api, QUEUE))
    assert "open: calls are blocked 5 failures in a row: 503; a probe in" in shown
    assert "is closed: calls pass again" in press(api, f"{QUEUES}/breakers/openai:vision/close")
    assert "is open" in press(api, f"{QUEUES}/breakers/openai:vision/open", minutes="1", reason="invoice unpaid")
    history = words(one_queue(context, QueueQuery(queue="vision.openai"))["breaker-history"])
    assert (
        '<select name="minutes">'
        in page(api, QUEUE).partition('action="/console/queues/breakers/openai:vision/open"')[2]
    )
    assert re.search(
        r"opened invoice unpaid \(by testclient\) .* closed by hand .* opened 5 failures in a row: 503", history
    )


def test_limits_are_changed_with_an_author_and_reset_to_the_configured_value(api: TestClient, context: Context) -> None:
    shown = words(page(api, QUEUE))
    assert "Limits of all queues of openai" in shown
    assert "as configured" in shown
    key = f"{QUEUES}/settings/provider.openai.limits"
    assert "is 9/min, on every worker within two seconds" in press(api, key, value=" 9/min ", reason="a better plan")
    assert control.queue("vision.openai").limits[0].limit == "9/min"
    shown = words(page(api, QUEUE))
    assert "“a better plan” · configured: 3/min, 5000 tokens/min" in shown
    refused = api.post(key, data={"value": "lots"}, headers=BROWSER)
    assert refused.status_code == 422
    assert "is not a limit: write it like 10/s" in refused.text
    assert "is back to its configured value: 3/min" in press(api, f"{key}/reset")
    assert len(control.queue("vision.openai").limits) == 2


def test_a_reader_sees_everything_but_limits_and_buttons(connect: Connect, context: Context) -> None:
    reader = connect(Scope.READ, host="0.0.0.0")
    for path in (QUEUES, QUEUE):
        shown = page(reader, path)
        assert "flowing" in shown
        assert f"{path}/pause" not in shown
        assert '<dialog id="pause' not in shown
    assert "Limits of all queues" not in page(reader, QUEUE)
    shown_to_all = all_queues(context, QueuesQuery())
    assert not any("<form" in html or "<button" in html for html in shown_to_all.values())


def test_an_unknown_queue_is_a_page_that_names_the_known_queues(api: TestClient) -> None:
    answer = api.get(f"{QUEUES}/nobody", headers=PAGE)
    assert answer.status_code == 404
    assert "vision.openai" in answer.text


def test_workers_are_listed_with_their_work_and_a_dead_beat_is_noticed(api: TestClient, context: Context) -> None:
    assert "No worker is alive" in page(api, "/console/workers")
    Presence(context.redis).renew(
        "cpu@desk:42:1f09ab", 60, facts={"slots": 4, "queues": ["cpu"], "since_ms": 1_795_341_600_000}
    )
    assert "Make sure that beat runs" in page(api, "/console/workers")
    sweep_ended(context.redis)
    document = insert_document(context, pages=[PageStatus.PENDING])
    shown = words(page(api, "/console/workers"))
    assert "cpu desk · process 42 cpu 0 of 4 idle" in shown
    assert "beat is alive" in shown
    assert document not in shown
    assert "No inference nodes yet" in shown


def test_nodes_are_shown_to_all_and_tokens_to_administrators_only(
    api: TestClient, connect: Connect, context: Context
) -> None:
    created = api.post("/console/workers/tokens", data={"name": "desk", "kind": "node", "days": "90"}, headers=BROWSER)
    assert created.status_code == 200
    secret_match = re.search(r'<pre id="secret">(pstn_[^<]+)</pre>', created.text)
    assert secret_match is not None
    shown = page(api, "/console/workers")
    assert secret_match[1] not in shown, "it is shown once"
    assert "No node is connected" in shown
    assert "desk" in words(shown)
    reader = connect(Scope.READ, host="0.0.0.0")
    assert "Tokens of nodes" not in page(reader, "/console/workers")
    (token,) = tokens.list_tokens(context)
    assert "is revoked" in press(api, f"/console/workers/tokens/{token.id}/revoke")
    assert "revoked" in words(page(api, "/console/workers"))


def test_an_unknown_node_job_or_letter_has_an_error_page(api: TestClient, context: Context) -> None:
    tokens.create(context, "desk", tokens.TokenKind.NODE, None, "")
    for path in ("nodes/desk-1", "jobs/5f0c1b9e"):
        answer = api.get(f"/console/workers/{path}", headers=PAGE)
        assert (answer.status_code, path.partition("/")[2] in answer.text) == (404, True)
    missing = api.post("/console/workers/dlq/host-1/1795341600000-0/replay", headers=BROWSER)
    assert missing.status_code == 404
    assert "No node is connected" in workers.all_nodes(context, workers.NodesQuery())["nodes"]
