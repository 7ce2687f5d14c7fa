"""`/api/v1/screenshots`: it stores frames, searches and shows nodes, replays dead letters, and deletes a time range."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, NODES
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.work import analysis, shard
from pipeline.interfaces.api.app import PREFIX
from pipeline.interfaces.http.pages import encode
from pipeline.reading.ocr import fingerprint
from pipeline.storage.context import Context
from tests.integration.interfaces.api.test_skeleton import problem
from tests.integration.screenshots.conftest import BEGIN, ME, Evidence, Hand, draft
from tests.support.frames import encoded, noise
from tests.support.screens import batch_ready
from tests.support.screenshots import desk

SHOTS = f"{PREFIX}/screenshots"
RANGE = {"since": "2026-03-01T00:00:00Z", "until": "2026-03-02T00:00:00+01:00"}


@pytest.fixture
def hand(context: Context, tmp_path: Path) -> Hand:
    return Hand(context, tmp_path)


def send(api: TestClient, name: str, **fields: Any) -> Any:
    return api.post(SHOTS, files={"file": ("desk.png", encoded(noise(name)), "image/png")}, data=fields)


def paged(api: TestClient, path: str, limit: int, **params: Any) -> list[Any]:
    """Return the items of each page of a list."""
    pages, cursor = [], ""
    while cursor is not None:
        query = params | {"limit": limit} | ({"cursor": cursor} if cursor else {})
        answer = api.get(f"{SHOTS}/{path}".rstrip("/"), params=query).json()
        pages.append(answer["items"])
        cursor = answer["next_cursor"]
    return pages


def give_up(context: Context, batch_id: int) -> None:
    analysis.claim(context, batch_id)
    part = shard.claim(context, batch_id, ME)
    assert part is not None
    shard.fail(context, part, UnitError("no key", kind=ErrorKind.PERMANENT))
    analysis.settle(context, batch_id)


@pytest.mark.both_databases
def test_pages_of_every_list_follow_one_another_without_gaps(api: TestClient, context: Context, hand: Hand) -> None:
    batches = [hand.batch()[0] for _ in range(3)]
    for title, batch in zip("ab", batches, strict=False):
        at = BEGIN + timedelta(hours=1)  # all at the same time
        hand.analyse(batch, [draft(f"{title}{n}", thread="t", at=at) for n in range(2)])
    pages = paged(api, "timeline", 3)
    titles = [[node["title"] for hour in page for node in hour["nodes"]] for page in pages]
    assert titles == [["a1", "b0", "b1"], ["a0"]], "the latest page first, each page in the order of time"
    assert {hour["thread_id"] for page in pages for hour in page} == {"t"}
    assert [len(page) for page in paged(api, "batches", 2)] == [2, 1]
    assert [batch["id"] for page in paged(api, "batches", 2) for batch in page] == batches[::-1]
    now = context.db.now()
    given_up = {"status": WorkStatus.FAILED_PERMANENT, "error": "no key", "updated_at": now}
    with context.db.transaction() as session:
        for table in (BATCHES, NODES, EMBEDDINGS):
            session.execute(update(table).values(**given_up))
    letters = [letter["id"] for page in paged(api, "dead-letters", 2) for letter in page]
    kinds = [letter.partition(":")[0] for letter in letters]
    assert (len(set(letters)), kinds) == (11, ["batch"] * 3 + ["merge"] * 4 + ["vector"] * 4)
    assert [len(page) for page in paged(api, "dead-letters", 3, kind="merge")] == [3, 1]


def test_a_frame_is_stored_once_and_its_picture_returned(api: TestClient, context: Context) -> None:
    fields = {"source": "screen:2", "app": "Firefox", "title": "Invoices", "ts": "2026-03-01T10:00:00+01:00"}
    sent = send(api, "desk", **fields)
    assert (sent.status_code, sent.json()["outcome"], sent.json()["status"]) == (202, "accepted", "pending")
    assert sent.headers["location"] == f"{SHOTS}/{sent.json()['id']}"
    shot = api.get(sent.headers["location"]).json()
    assert (shot["source_key"], shot["app"], shot["window_title"]) == ("screen:2", "Firefox", "Invoices")
    assert (shot["ts"], "path" in shot) == ("2026-03-01T09:00:00Z", False)
    picture = api.get(f"{sent.headers['location']}/picture")
    assert (picture.headers["content-type"], picture.content) == ("image/png", encoded(noise("desk")))
    assert picture.headers["x-content-type-options"] == "nosniff"
    repeated = send(api, "desk", **fields)
    assert (repeated.json()["outcome"], repeated.json()["id"]) == ("known", shot["id"])
    raw = {"content-type": "image/png"}
    twin = api.post(SHOTS, content=encoded(noise("desk")), params={"source": "screen:2"}, headers=raw)
    assert (twin.status_code, twin.json()["outcome"], twin.json()["nearest_id"]) == (200, "duplicate", shot["id"])
    folder = context.settings.upload_dir
    assert not [path for path in folder.iterdir() if path.name.startswith("incoming-")]
    (context.settings.screenshot_dir / next(context.settings.screenshot_dir.iterdir()).name).unlink()
    problem(api.get(f"{sent.headers['location']}/picture"), 404, "no_picture")


def test_waiting_ends_with_the_analysis_or_with_the_time(api: TestClient, hand: Hand) -> None:
    at = [f"2026-03-01T09:00:0{number}Z" for number in range(5)]
    sent = [send(api, f"desk {number}", ts=ts).json() for number, ts in enumerate(at)]
    assert len(batch_ready(hand.context)) == 1
    [batch] = api.get(f"{SHOTS}/batches").json()["items"]
    waited = api.post(SHOTS, params={"wait": 0.1}, files={"file": encoded(noise("desk 0"))}, data={"ts": at[0]})
    assert (waited.status_code, waited.json()["status"]) == (202, "pending")
    assert waited.headers["retry-after"]
    hand.analyse(batch["id"], [draft("Paying bills")])
    known = send(api, "desk 0", ts=at[0])
    assert (known.status_code, known.json()["outcome"], known.json()["status"]) == (200, "known", "succeeded")
    assert known.json()["id"] == sent[0]["id"]


def test_only_a_child_process_decodes_pictures(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        raise AssertionError("the API's process decodes a picture")

    monkeypatch.setattr(fingerprint, "read_frame", refuse)
    first = send(api, "desk").json()
    repeated = send(api, "desk").json()
    assert (repeated["outcome"], repeated["nearest_id"]) == ("duplicate", first["id"])


def test_frames_of_a_source_that_is_off_are_refused_and_listed(api: TestClient) -> None:
    assert api.put(f"{SHOTS}/sources/window:7", json={"active": False}).json()["active"] is False
    refused = send(api, "desk", source="window:7")
    assert (refused.status_code, refused.json()["outcome"], refused.json()["id"]) == (200, "inactive", None)
    [listed] = api.get(f"{SHOTS}/rejected", params={"source": "window:7"}).json()["items"]
    assert listed["reason"] == "inactive"
    assert api.get(f"{SHOTS}/rejected", params={"source": "screen:0"}).json()["items"] == []
    assert api.put(f"{SHOTS}/sources/window:7", json={"active": True}).json()["active"] is True
    assert send(api, "desk", source="window:7").json()["outcome"] == "accepted"
    [source] = api.get(f"{SHOTS}/sources").json()["items"]
    assert (source["frames"], source["rejected"]) == (1, 1)
    problem(api.put(f"{SHOTS}/sources/kitchen", json={"active": True}), 422, "bad_source")


@pytest.mark.parametrize(
    ("content", "fields", "code"),
    [
        (b"hello", {}, "not_an_image"),
        (encoded(noise("x"))[:900], {}, "corrupt"),
        (None, {"source": "kitchen"}, "bad_source"),
        (None, {"ts": "2026-03-01T10:00:00"}, "invalid"),
        (None, {"ts": "0001-01-01T00:00:00+14:00"}, "invalid"),
        (None, {"app": "a\x1bb"}, "invalid"),
        (None, {"colour": "red"}, "invalid"),
    ],
)
def test_an_invalid_frame_is_refused_without_facts_of_the_server(
    api: TestClient, context: Context, content: bytes | None, fields: dict[str, str], code: str
) -> None:
    body = encoded(noise("desk")) if content is None else content
    detail = problem(api.post(SHOTS, files={"file": ("desk.png", body)}, data=fields), 422, code)
    assert str(context.settings.data_dir) not in detail
    assert "incoming-" not in detail
    listed = api.get(f"{SHOTS}/rejected").json()["items"]
    assert [item["reason"] for item in listed] == (["refused"] if content else [])


def test_nodes_are_searched_and_shown_with_their_evidence(api: TestClient, hand: Hand) -> None:
    batch, shots = hand.batch(app="Firefox")
    evidence = {shots[0]: Evidence("Invoice 17 of March")}
    [node_id] = hand.analyse(batch, [draft("Paying bills", [shots[0]], summary="three of March")], evidence)
    result = api.get(f"{SHOTS}/search", params={"q": "invoice", "app": "Firefox"}).json()
    [hit] = result["hits"]
    assert (hit["node"]["id"], hit["shot_id"], result["lexical"]) == (node_id, shots[0], True)
    assert "Invoice 17" in hit["excerpt"]
    assert api.get(f"{SHOTS}/search", params={"q": "invoice", "app": "Code"}).json()["hits"] == []
    shown = api.get(f"{SHOTS}/nodes/{node_id}").json()
    assert (shown["node"]["title"], [shot["id"] for shot in shown["screenshots"]]) == ("Paying bills", [shots[0]])
    assert (shown["calls"][0]["model"], "path" in shown["screenshots"][0]) == ("m", False)
    batch_row = api.get(f"{SHOTS}/batches/{batch}").json()
    assert (batch_row["id"], batch_row["total_attempts"], shown["screenshots"][0]["vlm_attempts"]) == (batch, 1, 1)
    problem(api.get(f"{SHOTS}/batches/99"), 404, "unknown_batch")
    later = api.get(f"{SHOTS}/timeline", params={"since": RANGE["until"]}).json()
    assert later == {"items": [], "next_cursor": None}
    status = api.get(f"{SHOTS}/status").json()
    assert (status["made_by"], status["screenshots"]) == ({"model": 1}, {"succeeded": 5})


def test_dead_letters_are_replayed_by_id_or_all_that_match(api: TestClient, context: Context, hand: Hand) -> None:
    act = f"{SHOTS}/dead-letters/actions/replay"
    batch = hand.batch()[0]
    give_up(context, batch)
    [letter] = api.get(f"{SHOTS}/dead-letters").json()["items"]
    assert (letter["id"], letter["reason"]) == (f"batch:{batch}", "shard 1: no key")
    done = api.post(act, json={"ids": [letter["id"], "batch:99", "merge:1"]}).json()
    assert (done["matched"], done["done"]) == (3, 1)
    assert [skipped["id"] for skipped in done["skipped"]] == ["batch:99", "merge:1"]
    assert api.get(f"{SHOTS}/batches", params={"status": "pending"}).json()["items"][0]["id"] == batch
    give_up(context, batch)
    assert api.post(act, json={"filter": {"kind": "vector"}, "all_matching": True}).json()["done"] == 0
    assert api.post(act, json={"all_matching": True}).json() == {"matched": 1, "done": 1, "skipped": []}
    for wrong in ({}, {"ids": ["4"]}, {"ids": ["batch:0"]}, {"ids": [], "all_matching": True}, {"ids": ["x:1"]}):
        problem(api.post(act, json=wrong), 422, "invalid")


def test_a_range_of_time_is_measured_then_deleted(api: TestClient, hand: Hand) -> None:
    batch, shots = hand.batch()
    [node_id] = hand.analyse(batch, [draft("Paying bills")])
    extent = api.get(f"{SHOTS}/extent", params=RANGE).json()
    assert (extent["screenshots"], extent["nodes"]) == (5, 1)
    problem(api.delete(SHOTS), 422, "invalid")
    problem(api.delete(SHOTS, params={"since": RANGE["until"], "until": RANGE["since"]}), 422, "bad_range")
    deleted = api.delete(SHOTS, params=RANGE).json()
    assert deleted == {"screenshots": 5, "nodes": 1, "restored": 0}
    problem(api.get(f"{SHOTS}/nodes/{node_id}"), 404, "unknown_node")
    problem(api.get(f"{SHOTS}/{shots[0]}"), 404, "unknown_screenshot")
    problem(api.get(f"{SHOTS}/{shots[0]}/picture"), 404, "unknown_screenshot")


def test_invalid_questions_about_screenshots_are_refused(api: TestClient) -> None:
    queries: tuple[dict[str, Any], ...]
    queries = ({}, {"q": ""}, {"q": "a\x00"}, {"q": "a", "limit": 201}, {"q": "a", "since": "monday"})
    for query in queries:
        problem(api.get(f"{SHOTS}/search", params=query), 422, "invalid")
    problem(api.get(f"{SHOTS}/search", params={"q": " "}), 422, "empty_query")
    for path in ("batches", "rejected", "dead-letters", "timeline"):
        problem(api.get(f"{SHOTS}/{path}", params={"cursor": encode("x")}), 400, "bad_cursor")
    for path in ("desk", "nodes/x", "0", f"nodes/{2**60}"):
        problem(api.get(f"{SHOTS}/{path}"), 422, "invalid")


def test_frames_are_listed_shown_smaller_and_their_words_have_places(api: TestClient, tmp_path: Path) -> None:
    path = desk(tmp_path / "desk.png", "Invoice 4711 of March")
    fields = {"source": "screen:2", "app": "Firefox", "ts": "2026-03-01T10:00:00Z"}
    sent = api.post(SHOTS, files={"file": ("desk.png", path.read_bytes(), "image/png")}, data=fields).json()
    send(api, "later", ts="2026-03-01T11:00:00Z")
    assert [[shot["app"] for shot in page] for page in paged(api, "", 1)] == [[""], ["Firefox"]]
    [only] = api.get(SHOTS, params={"app": "fire", "source": "screen:2", "status": "pending"}).json()["items"]
    assert only["id"] == sent["id"]
    assert api.get(SHOTS, params={"until": "2026-03-01T09:00:00Z"}).json()["items"] == []
    where = f"{SHOTS}/{sent['id']}"
    small = api.get(f"{where}/picture", params={"size": "small"})
    assert (small.headers["content-type"], small.content[:3]) == ("image/jpeg", b"\xff\xd8\xff")
    cached = api.get(f"{where}/picture", params={"size": "small"}, headers={"if-none-match": small.headers["etag"]})
    assert (cached.status_code, cached.content) == (304, b"")
    assert len(api.get(f"{where}/picture", params={"size": "large"}).content) > len(small.content)
    lines = api.get(f"{where}/text", params={"q": "invoice"}).json()["items"]
    assert [word["text"] for line in lines for word in line["words"]] == ["Invoice"]
    assert all(0 <= line["left"] < line["right"] <= 1 for line in lines)
    assert api.get(f"{where}/nodes").json()["items"] == []
    problem(api.get(f"{where}/picture", params={"size": "huge"}), 422, "invalid")
    for path_of in ("nodes", "text", "picture?size=small"):
        problem(api.get(f"{SHOTS}/999/{path_of}"), 404, "unknown_screenshot")


def test_exclusions_are_shown_and_changed(api: TestClient) -> None:
    changed = api.put(f"{SHOTS}/exclusions", json={"apps": ["Signal"], "titles": ["*private*"]})
    assert changed.json() == {"apps": ["Signal"], "titles": ["*private*"], "fixed_apps": [], "fixed_titles": []}
    assert send(api, "desk", app="signal").json()["outcome"] == "excluded"
    editor = {"app": "editor", "box": [0, 0, 100, 100]}
    for number, (windows, outcome) in enumerate(
        [
            ([editor, {"app": "Signal", "box": [50, 50, 150, 90]}], "excluded"),
            ([editor, {"app": "Signal", "box": [50, 50, 90, 90]}], "accepted"),
            ([{**editor, "opaque": False}, {"app": "Signal", "box": [50, 50, 90, 90]}], "excluded"),
            ([editor, {"app": "Signal"}], "excluded"),
        ]
    ):
        assert send(api, f"behind {number}", windows=json.dumps(windows)).json()["outcome"] == outcome
    problem(send(api, "desk", windows='[{"box": [1]}]'), 422, "invalid")
    assert api.put(f"{SHOTS}/exclusions", json={"titles": []}).json()["apps"] == ["Signal"]
    assert api.get(f"{SHOTS}/exclusions").json()["titles"] == []
    problem(api.put(f"{SHOTS}/exclusions", json={"apps": ["*"]}), 422, "bad_value")
    problem(api.put(f"{SHOTS}/exclusions", json={"apps": [""]}), 422, "invalid")
    rejected = api.get(f"{SHOTS}/rejected", params={"reason": "excluded"}).json()["items"]
    assert [item["reason"] for item in rejected] == ["excluded"] * 4
    assert api.get(f"{SHOTS}/rejected", params={"reason": "duplicate"}).json()["items"] == []
