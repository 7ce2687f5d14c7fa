"""`GET /api/v1/events` on a real server: replayed from the database, then live."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from sqlalchemy import delete
from sqlalchemy.orm import Session

from pipeline.engine import events as progress
from pipeline.engine import outbox
from pipeline.engine.outbox import EVENTS
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus
from pipeline.interfaces.api.app import create_app
from pipeline.interfaces.http import streams as feed
from pipeline.interfaces.rest import events
from pipeline.operations.caller import Caller
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tasks.events import kept
from tests.integration.interfaces.api.conftest import Connect
from tests.support.documents import insert_document
from tests.support.waiting import wait_until

Message = dict[str, Any]


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__STREAMS_PER_KEY": "2"}


@pytest.mark.both_databases
def test_stored_events_are_listed_newest_first_by_flow_type_and_subject(context: Context, connect: Connect) -> None:
    api, log = connect(), "/api/v1/events/log"
    assert api.get(log).json() == {"items": [], "next_cursor": None}
    first_id, second_id = (insert_document(context, DocumentStatus.PENDING) for _ in range(2))
    for document_id, event in (
        (first_id, DocumentEvent.PAUSE),
        (second_id, DocumentEvent.PAUSE),
        (first_id, DocumentEvent.CANCEL),
    ):
        where = DOCUMENTS.c.id == document_id
        context.db.run(lambda session, where=where, event=event: DOCUMENT.move(session, DOCUMENTS, event, where))

    def listed(**query: Any) -> list[int]:
        return [entry["seq"] for entry in api.get(log, params=query).json()["items"]]

    first = api.get(log, params={"limit": 2}).json()
    assert [entry["seq"] for entry in first["items"]] == [3, 2]
    assert listed(limit=2, cursor=first["next_cursor"]) == [1]
    assert listed(type="document.paused") == [2, 1]
    assert listed(type=["document.cancelled", "music_run.*"]) == [3]
    assert listed(type="document.*") == listed(flow="documents") == [3, 2, 1]
    assert listed(flow="music") == []
    assert listed(scope=first_id) == [3, 1]
    assert api.get(f"{log}/3").json() == first["items"][0]
    assert first["items"][0]["id"] == first_id
    assert api.get(f"{log}/4").json()["code"] == "unknown_event"
    assert api.get(log, params={"type": "document.%"}).status_code == 422


class Server:
    """The API on its own port, in a thread."""

    def __init__(self, context: Context) -> None:
        self.app = create_app(context)
        config = uvicorn.Config(self.app, port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=10)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> "Server":
        self._thread.start()
        wait_until(lambda: self._server.started, 60, "the API listens")
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/api/v1/events"
        return self

    def end(self) -> None:
        self.app.state.ending.set()
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive(), "a stream keeps the server"

    def __exit__(self, *_: object) -> None:
        self.end()

    @contextmanager
    def stream(self, headers: dict[str, str] | None = None, **query: Any) -> Iterator[Iterator[Message]]:
        """Yield the messages of a stream."""
        with httpx2.Client(timeout=30) as client, client.stream("GET", self.url, params=query, headers=headers) as got:
            assert got.status_code == 200, got.read()
            assert got.headers["content-type"].startswith("text/event-stream")
            yield _messages(got.iter_lines())


def _messages(lines: Iterator[str]) -> Iterator[Message]:
    message: Message = {}
    for line in lines:
        if not line:
            yield {**message, "data": json.loads(message["data"]) if "data" in message else None}
            message = {}
            continue
        name, _, value = line.partition(":")
        message[name or "comment"] = value.removeprefix(" ")


@pytest.fixture
def server(context: Context) -> Iterator[Server]:
    with Server(context) as server:
        yield server


def change(context: Context, event: DocumentEvent = DocumentEvent.PAUSE) -> str:
    document_id = insert_document(context, DocumentStatus.PENDING)
    context.db.run(lambda session: DOCUMENT.move(session, DOCUMENTS, event, DOCUMENTS.c.id == document_id))
    return document_id


def take(messages: Iterator[Message], count: int) -> list[Message]:
    """Return the next `count` messages with data, without progress."""
    taken: list[Message] = []
    while len(taken) < count:
        message = next(messages)
        taken += [message] if message["data"] is not None and message["event"] != "progress" else []
    return taken


def test_a_stream_replays_from_a_number_and_continues_live_without_a_gap(
    context: Context, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.operations.events.PORTION", 3)
    for _ in range(10):
        change(context)
    with server.stream(after=2) as messages, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [change(context) for _ in range(20)])
        events = take(messages, 28)
        writing.result()
    assert [int(event["id"]) for event in events] == list(range(3, 31))
    assert {event["event"] for event in events} == {"document.paused"}
    assert events[0]["data"]["status"] == "paused"
    with server.stream(headers={"last-event-id": "29"}, after=1) as messages:
        assert take(messages, 1)[0]["id"] == "30"


def test_without_a_number_a_stream_starts_now_and_filters_events(context: Context, server: Server) -> None:
    change(context)
    with server.stream(type=["document.cancelled", "progress"], flow="documents") as messages:
        next(messages)
        change(context)
        cancelled = change(context, DocumentEvent.CANCEL)
        (message,) = take(messages, 1)
        assert (message["event"], message["data"]["id"], message["id"]) == ("document.cancelled", cancelled, "3")
        progress.publish(context.redis, "music", "run", run="r")
        progress.publish(context.redis, "documents", "document", document=cancelled, progress=40)
        progress_messages = []
        while not progress_messages or progress_messages[-1]["data"].get("progress") != "40":
            progress_messages += [message for message in [next(messages)] if message["data"] is not None]
    assert {(message["event"], message["data"]["flow"], "id" in message) for message in progress_messages} == {
        ("progress", "documents", False)
    }


def test_a_stream_of_one_subject_has_only_its_events(context: Context, server: Server) -> None:
    first, second = change(context), change(context)
    with server.stream(scope=second, after=0) as messages:
        assert take(messages, 1)[0]["data"]["id"] == second
    with server.stream(scope=first, after=0) as messages:
        assert take(messages, 1)[0]["data"]["id"] == first


def test_a_client_is_told_of_missed_events_that_are_no_longer_stored(context: Context, server: Server) -> None:
    for _ in range(4):
        change(context)
    context.db.run(lambda session: session.execute(delete(EVENTS).where(EVENTS.c.seq <= 2)))
    with server.stream(after=1) as messages:
        reset, following = take(messages, 2)
    assert (reset["event"], reset["id"], reset["data"]["first"]) == ("reset", "2", 3)
    assert following["id"] == "3"
    with server.stream(after=1000) as messages:
        reset = take(messages, 1)[0]
        assert (reset["event"], reset["id"]) == ("reset", "4")


@pytest.mark.both_databases
def test_events_committed_during_the_query_do_not_count_as_deleted(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    last_seq = outbox.last_seq

    def meanwhile(session: Session) -> int:
        change(context)
        return last_seq(session)

    monkeypatch.setattr(outbox, "last_seq", meanwhile)
    assert kept.by(Caller(context)).first == 1


@pytest.mark.both_databases
def test_a_stream_that_lags_behind_reads_from_the_database(
    context: Context, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "KEPT", 3)
    with server.stream(after=0) as messages:
        for _ in range(30):
            change(context)
        assert [int(event["id"]) for event in take(messages, 30)] == list(range(1, 31))


def test_each_caller_has_a_limit_of_open_streams(context: Context, server: Server) -> None:
    def refused() -> bool:
        with httpx2.Client(timeout=30) as client, client.stream("GET", server.url) as got:
            return got.status_code == 429

    with server.stream() as first, server.stream() as second:
        next(first), next(second)
        assert refused()
    wait_until(lambda: not refused(), 60, "closed streams do not count")


def test_a_silent_stream_sends_comments_and_ends_with_the_server(
    context: Context, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.1)
    with server.stream() as messages:
        assert [next(messages)["comment"] for _ in range(3)] == ["events", "still here", "still here"]
        server.end()
        rest = list(messages)
    assert all(message["data"] is None for message in rest)


@pytest.mark.parametrize(
    "query", [{"after": -1}, {"after": 2**60}, {"type": "a b"}, {"scope": "x" * 100}, {"flow": "\x00"}]
)
def test_invalid_parameters_of_a_stream_are_refused(context: Context, server: Server, query: dict[str, Any]) -> None:
    assert httpx2.get(server.url, params=query).status_code == 422


def test_a_stream_ends_when_its_key_is_revoked(
    context: Context, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "KEY_S", 0.1)
    secret, key = api_keys.create(context, "follower", Scope.READ)
    with server.stream(headers={"x-api-key": secret}) as messages:
        next(messages)
        change(context)
        assert take(messages, 1)
        api_keys.revoke(context, key.id)
        assert all("id" not in message for message in messages)
