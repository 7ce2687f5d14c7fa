"""The console's screenshots: the timeline, hits with their places, and all actions."""

import re
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from pipeline.flows.screenshots import queries, service
from pipeline.flows.screenshots.frames import files, intake, renditions
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.rules.headings import Box, SeenLine
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.interfaces.console.screens import screenshots as shown
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.screenshots.conftest import BEGIN, Evidence, Hand, draft
from tests.support.frames import encoded, noise

SHOTS_AT = "/console/screenshots"
EVIL = "<img src=x onerror=alert(1)>\"'</script>{{7*7}}"


@pytest.fixture
def hand(context: Context, tmp_path: Path) -> Hand:
    return Hand(context, tmp_path)


@pytest.fixture
def story(hand: Hand) -> tuple[list[int], list[int]]:
    """(nodes, frames): a morning with invoices, and another day."""
    batch, shots = hand.batch(app="Firefox")
    read = {shots[1]: Evidence("Invoice 4711 of March, to be paid")}
    drafts = [
        draft("Paying bills", shots[:3], thread="bills", summary="Checked the invoice."),
        draft("How invoices are checked", shots[1:2], kind="knowledge", derived_from=0),
        draft("Writing to Ann", shots[3:], thread="mail", at=BEGIN + timedelta(days=1)),
    ]
    return hand.analyse(batch, drafts, read), shots


def page(client: TestClient, path: str = "", **query: Any) -> str:
    answer = client.get(f"{SHOTS_AT}{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.text


def words_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def act(client: TestClient, path: str, **fields: Any) -> str:
    """Return the message of an action."""
    answer = client.post(f"{SHOTS_AT}{path}", data=fields, headers={"hx-request": "true"})
    message = answer.text or answer.headers.get("set-cookie", "")
    assert answer.status_code == 200, message
    return words_of(message)


def test_without_frames_the_page_says_how_to_start(api: TestClient) -> None:
    words = words_of(page(api))
    for way in ("penstock screenshots add", "screenshots watch", "screenshots capture", "CAPTURE_SOURCES"):
        assert way in words
    assert "No frames yet." in words
    for path in ("/frames", "/rejected", "/batches", "/dead-letters", "/sources", "/delete"):
        assert '<div class="empty">' in page(api, path) or path == "/delete"
    assert "No hits for “cat”" in words_of(page(api, q="cat"))


def test_frames_are_shown_before_their_first_nodes(api: TestClient, hand: Hand) -> None:
    shot = hand.add(app="Firefox").shot_id
    html = page(api)
    assert "No events yet" in html
    assert f'href="{SHOTS_AT}/frames/{shot}"' in html
    assert "1 in the buffer" in words_of(html)


def test_the_timeline_goes_by_day_and_thread_with_pictures(
    api: TestClient, story: tuple[list[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, shots = story
    html = page(api)
    days = ["Monday, 2 March 2026", "Sunday, 1 March 2026"]
    assert re.findall(r'<h2 id="day-[^>]*>([^<]+)', html) == days, "the latest first"
    assert f"/api/v1/screenshots/{shots[0]}/picture?size=small" in html
    assert 'loading="lazy"' in html
    assert f"{SHOTS_AT}?thread=bills" in html
    assert "How invoices are checked" not in html
    assert "How invoices are checked" in page(api, derived="true")
    only = page(api, thread="bills")
    assert "Writing to Ann" not in only
    assert "How invoices are checked" in only
    assert "Writing to Ann" not in page(api, day="2026-03-01")
    assert "No events up to that day" in page(api, day="2026-02-01")
    assert page(api, day="", cursor="", q="", app="")
    monkeypatch.setattr(shown, "NODES", 1)
    first = page(api)
    assert ("Writing to Ann" in first, "Paying bills" in first) == (True, False)
    further = unescape(re.findall(r'href="([^"]+)" rel="next"', first)[0])
    second = api.get(further).text
    assert ("Writing to Ann" in second, "Paying bills" in second) == (False, True)
    assert len(nodes) == 3


def test_a_hit_opens_its_frame_with_the_words_boxed(
    api: TestClient, context: Context, story: tuple[list[int], list[int]]
) -> None:
    _, shots = story
    file = files.path_of(context.settings, queries.screenshot(context, shots[1]).path.name)  # type: ignore[union-attr]
    line = SeenLine("Invoice 4711 of March", Box(0.1, 0.2, 0.5, 0.24))
    renditions.keep(context.settings, file.name, [line, SeenLine("File Edit", Box(0, 0, 0.1, 0.02))])
    html = page(api, q="4711")
    assert "Paying bills" in html
    assert "Invoice <mark>4711</mark> of March" in html
    assert f'{SHOTS_AT}/frames/{shots[1]}?q=4711"' in html
    assert html.count('<rect class="word"') == 2, "the words are marked on the pictures of both nodes"
    assert 'value="4711"' in html, "the query stays, and is in the address"
    frame = page(api, f"/frames/{shots[1]}", q="4711 march")
    assert frame.count('<rect class="word"') == 2
    assert frame.count('<rect class="line"') == 2
    [x, y] = re.findall(r'<rect class="word" data-line="1" x="([\d.]+)" y="([\d.]+)"', frame)[0]
    assert 200 < float(x) < 300
    assert 190 < float(y) < 210
    assert "2 places of “4711 march”" in words_of(frame)
    assert "Paying bills" in frame
    assert f'href="{SHOTS_AT}/frames/{shots[2]}?q=4711+march" data-key="j"' in frame


def test_unknown_places_of_words_are_recognised_on_request(
    api: TestClient, story: tuple[list[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, shots = story
    read = [SeenLine("Invoice 4711", Box(0.1, 0.2, 0.5, 0.24))]
    monkeypatch.setattr(renditions, "read", lambda *_, **__: read)
    frame = page(api, f"/frames/{shots[1]}", q="4711")
    assert f'hx-get="{SHOTS_AT}/frames/{shots[1]}/words?q=4711" hx-trigger="load"' in frame
    assert "<rect" not in frame
    assert "Invoice 4711 of March, to be paid" in frame
    quiet = page(api, f"/frames/{shots[1]}")
    assert 'hx-trigger="load"' not in quiet
    assert f"/frames/{shots[1]}?read=1" in quiet, "without scripts, too"
    piece = page(api, f"/frames/{shots[1]}/words", q="4711")
    assert piece.startswith('<div class="seen" id="seen">')
    assert piece.count('<rect class="word"') == 1
    assert "<html" not in piece
    assert page(api, f"/frames/{shots[1]}", read=1).count('<rect class="line"') == 1


def test_a_frame_whose_picture_was_deleted_keeps_its_text(
    api: TestClient, context: Context, story: tuple[list[int], list[int]]
) -> None:
    _, shots = story
    with context.db.transaction() as session:
        session.execute(update(SHOTS).values(storage_state="deleted"))
    frame = page(api, f"/frames/{shots[1]}", q="4711", read=1)
    assert "deleted after its retention time" in frame
    assert "Invoice 4711 of March" in frame
    assert "/picture" not in frame
    assert "picture not stored" in page(api)
    assert api.get(f"{SHOTS_AT}/frames/{shots[1]}/words").status_code == 200
    missing = api.get(f"{SHOTS_AT}/frames/999")
    assert (missing.status_code, "There is no screenshot 999." in missing.text) == (404, True)


def test_a_node_shows_its_frames_and_calls(api: TestClient, story: tuple[list[int], list[int]]) -> None:
    nodes, shots = story
    html = page(api, f"/nodes/{nodes[0]}")
    words = words_of(html)
    assert "Checked the invoice." in words
    for shot in shots[:3]:
        assert f'{SHOTS_AT}/frames/{shot}"' in html
    assert "analysing frames" in words
    assert "p m" in words, "the call's provider and model"
    assert "How invoices are checked" in words
    assert "importance 5, confidence 5, of 10" in words
    assert "/console/calls?flow=screenshots&amp;scope_id=" in html
    derived = words_of(page(api, f"/nodes/{nodes[1]}"))
    assert "derived from Paying bills" in derived


def test_left_out_frames_are_shown_beside_the_frame_that_they_resemble(api: TestClient, hand: Hand) -> None:
    first = hand.add("one")
    for _ in range(5):
        hand.add("one")
    service.exclude(hand.context, apps=["Signal"])
    hand.add("two", app="Signal")
    html = page(api, "/rejected")
    words = words_of(html)
    assert f"5 frames look like frame {first.shot_id}" in words
    assert "nothing differs; up to 10 count as the same" in words
    assert "2 more" in words
    assert "1 frame was excluded" in words
    assert f"/api/v1/screenshots/{first.shot_id}/picture?size=small" in html
    only = words_of(page(api, "/rejected", reason="excluded", source=""))
    assert ("its program is excluded" in only, "look like" in only) == (True, False)
    assert "Left out as duplicates of this frame" in page(api, f"/frames/{first.shot_id}")


def test_dead_letters_are_retried_one_by_one_or_all(
    api: TestClient, context: Context, hand: Hand, story: tuple[list[int], list[int]]
) -> None:
    nodes, _ = story
    batch = hand.batch()[0]
    gave_up = {"status": WorkStatus.FAILED_PERMANENT, "error": "no key", "updated_at": context.db.now()}
    with context.db.transaction() as session:
        session.execute(update(BATCHES).where(BATCHES.c.id == batch).values(**gave_up))
        session.execute(update(NODES).where(NODES.c.id.in_(nodes)).values(**gave_up))
    html = page(api, "/dead-letters")
    words = words_of(html)
    assert f"batch {batch}" in words
    assert "no key" in words
    assert "Retry 4 dead letters" in html, "the question of the button"
    assert "Retry 3 dead letters" in page(api, "/dead-letters", kind="merge")
    assert "Retry" in page(api, f"/batches/{batch}")
    assert "It is retried." in act(api, "/dead-letters/replay", letter=f"batch:{batch}")
    assert "It was already retried." in act(api, "/dead-letters/replay", letter=f"batch:{batch}")
    assert "3 dead letters will be retried." in act(api, "/dead-letters/replay", kind="all")
    assert "No dead letters" in page(api, "/dead-letters")
    assert api.post(f"{SHOTS_AT}/dead-letters/replay", data={"letter": "cat:1"}).status_code == 422
    assert api.post(f"{SHOTS_AT}/dead-letters/replay").status_code == 422


def test_a_range_shows_its_content_before_its_deletion(
    api: TestClient, context: Context, story: tuple[list[int], list[int]]
) -> None:
    _, shots = story
    question = page(api, "/delete", since="2026-03-01T00:00", until="2026-03-02T00:00")
    assert "5 frames, 3 nodes based on them, and 0 records" in words_of(question)
    assert 'data-confirm="Delete 5 frames, 3 nodes based on them' in question
    [since] = re.findall(r'name="since" value="([^"]+\+00:00)"', unescape(question))
    [until] = re.findall(r'name="until" value="([^"]+\+00:00)"', unescape(question))
    act(api, "/delete", since=since, until=until)
    assert queries.screenshots_by_id(context, shots) == {}
    assert "Nothing was captured" in page(api, "/delete", since="2026-03-01T00:00", until="2026-03-02T00:00")
    assert page(api, "/delete", last="1h")
    for bad in ({"since": "x", "until": "y"}, {"since": "2026-03-02T00:00", "until": "2026-03-01T00:00"}):
        assert api.get(f"{SHOTS_AT}/delete", params=bad).status_code in {400, 422}


def test_sources_are_switched_and_programs_excluded(api: TestClient, context: Context, hand: Hand) -> None:
    hand.add("one", source="screen:7")
    assert "Frames of screen:7 are refused from now on." in act(
        api, "/sources/switch", source="screen:7", active="false"
    )
    assert hand.add("two", source="screen:7").reason == "inactive"
    assert "its frames are refused" in page(api, "/sources")
    assert "accepted from now on" in act(api, "/sources/switch", source="screen:7", active="true")
    assert "are not stored from now on" in act(api, "/exclusions", app="Signal", title="")
    act(api, "/exclusions", title="a;b*")
    exclusions = service.exclusions(context)
    assert (exclusions.apps, exclusions.titles) == (["Signal"], ["a?b*"])
    assert "Signal" in page(api, "/sources")
    assert "are stored again" in act(api, "/exclusions/remove", app="Signal")
    assert service.exclusions(context).apps == []
    for bad in ({}, {"app": "*"}, {"app": "x" * 300}):
        assert api.post(f"{SHOTS_AT}/exclusions", data=bad).status_code == 422


def test_pictures_are_added_from_the_browser(api: TestClient, context: Context) -> None:
    sent = [("file", (f"{name}.png", encoded(noise(name)), "image/png")) for name in ("a", "b", "a")]
    answer = api.post(
        f"{SHOTS_AT}/add",
        files=sent,
        data={"source": "screen:3", "app": "Firefox", "title": ""},
        follow_redirects=True,
    )
    assert "2 pictures added, 1 picture left out: duplicate." in words_of(answer.text)
    assert [(shot.app, shot.source_key) for shot in queries.screenshots(context)] == [("Firefox", "screen:3")] * 2
    assert api.post(f"{SHOTS_AT}/add", data={"source": "x"}, files={"x": b""}).status_code >= 400


def test_batches_show_their_state(api: TestClient, hand: Hand) -> None:
    batch, shots = hand.batch()
    hand.analyse_shards(batch)
    html = page(api, "/batches")
    assert f'href="{SHOTS_AT}/batches/{batch}"' in html
    assert "No batch is in this state" in page(api, "/batches", status="failed")
    batch_page = page(api, f"/batches/{batch}")
    assert "making nodes" in batch_page
    assert all(f'{SHOTS_AT}/frames/{shot}"' in batch_page for shot in shots)


def test_all_frames_are_listed_and_filtered(api: TestClient, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    hand.add(app="Firefox")
    hand.add(app="Word", source="screen:2")
    assert page(api, "/frames", status="", source="", app="").count('class="thumb') == 2
    assert page(api, "/frames", app="word").count('class="thumb') == 1
    assert "No frame matches" in page(api, "/frames", source="screen:9", status="succeeded")
    monkeypatch.setattr(shown, "FRAMES", 1)
    further = unescape(re.findall(r'href="([^"]+)" rel="next"', page(api, "/frames"))[0])
    assert "Firefox" in api.get(further).text


@pytest.mark.parametrize("scope", [Scope.READ, Scope.WRITE, Scope.ADMIN])
def test_a_reader_sees_no_buttons_and_is_refused(
    connect: Connect, context: Context, story: tuple[list[int], list[int]], scope: Scope
) -> None:
    nodes, shots = story
    client = connect(scope, host="0.0.0.0")  # with required keys
    may, governs = scope is not Scope.READ, scope is Scope.ADMIN
    for path in (f"/frames/{shots[0]}", "/sources", "/delete?last=24h", f"/nodes/{nodes[0]}", ""):
        main = client.get(f"{SHOTS_AT}{path}").text.partition("<main")[2]
        assert may or 'method="post"' not in main, path
    answer = client.post(f"{SHOTS_AT}/exclusions", data={"app": "Signal"}, headers={"origin": "http://127.0.0.1"})
    assert answer.status_code == (200 if governs else 403)
    assert service.exclusions(context).apps == (["Signal"] if governs else [])
    assert connect(host="0.0.0.0").get(SHOTS_AT, follow_redirects=False).status_code == 303


def test_texts_of_screens_are_escaped(api: TestClient, context: Context, hand: Hand, tmp_path: Path) -> None:
    batch, shots = hand.batch(app=EVIL)
    hand.analyse(batch, [draft(EVIL, summary=EVIL, thread=EVIL[:60])], {shots[0]: Evidence(EVIL, [EVIL], [EVIL])})
    frame = Frame("screen:1", BEGIN + timedelta(days=3), EVIL, EVIL)
    late = intake.ingest(context, hand.file("late"), frame).shot_id
    service.exclude(context, apps=[EVIL.replace(";", "?")])
    name = queries.screenshot(context, shots[0]).path.name  # type: ignore[union-attr]
    renditions.keep(context.settings, name, [SeenLine(EVIL, Box(0, 0, 1, 1))])
    paths = [
        "",
        f"?q={EVIL}",
        "?q=img",
        "/frames",
        f"/frames/{shots[0]}?q=onerror",
        f"/frames/{late}?q={EVIL}",
        f"/frames/{shots[0]}/words?q=img",
        "/nodes/1",
        "/rejected",
        "/batches",
        "/batches/1",
        "/sources",
        f"/frames?app={EVIL}&source={EVIL}",
        f"/rejected?source={EVIL}",
        f"?thread={EVIL}",
    ]
    for path in paths:
        answer = api.get(f"{SHOTS_AT}{path}")
        assert answer.status_code == 200, path
        assert "<img src=x" not in answer.text, path
        assert "49" not in re.findall(r"script&gt;(\d+)", answer.text), path
        assert 'onerror="' not in answer.text, path
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_the_status_line_is_a_live_fragment(api: TestClient, context: Context, hand: Hand) -> None:
    hand.add()
    pushed = shown.fragments(context, shown.ScreenshotsQuery())
    assert list(pushed) == ["shots-status"]
    assert pushed["shots-status"].startswith('<p class="facts" id="shots-status">')
    assert 'id="shots-status"' in page(api)
    assert "view=screenshots" in page(api)
