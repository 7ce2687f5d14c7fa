from hypothesis import given
from hypothesis import strategies as st

from pipeline.flows.screenshots.rules.batches import HistoryPack, HistoryThread
from pipeline.flows.screenshots.rules.expansion import BatchFacts, direct, with_threads
from pipeline.flows.screenshots.rules.heuristics import (
    CONFIDENCE,
    NOTE,
    UNTITLED,
    entities_in,
    index_by_rules,
    keywords_in,
    place_of,
    title_of,
)
from pipeline.flows.screenshots.rules.vision_reply import only_sent
from pipeline.flows.screenshots.states import Origin
from tests.unit.screenshots.factories import BASE_MS, shot

NOTHING = HistoryPack()


def test_title_and_hint_name_the_place() -> None:
    place = place_of(shot(1, window_title="● main.py - penstock - Visual Studio Code"))
    assert (place.app, place.document) == ("Visual Studio Code", "main.py – penstock")
    hinted = place_of(shot(1, app_hint="Firefox", window_title="(3) Inbox — Firefox"))
    assert (hinted.app, hinted.document, hinted.name) == ("Firefox", "Inbox", "Inbox – Firefox")
    assert place_of(shot(1, app_hint="firefox", window_title="Inbox — Mozilla Firefox")).name == "Inbox – firefox"
    assert place_of(shot(1, app_hint="Code", window_title="Visual Studio Code")).document == ""
    assert place_of(shot(1, app_hint="Firefox", window_title="Firefox for work - notes")).document != ""
    assert place_of(shot(1)).name == ""


def test_each_stay_at_a_place_is_a_segment_and_a_long_pause_ends_one() -> None:
    screens = {
        1: shot(1, window_title="a.py - Code"),
        2: shot(2, window_title="● a.py - Code"),
        3: shot(3, window_title="Mail - Firefox"),
        4: shot(4, ts_ms=BASE_MS + 300_000, window_title="Mail - Firefox"),
        5: shot(5, ts_ms=BASE_MS, window_title="Mail - Firefox"),
    }
    analysis = index_by_rules(screens, {}, NOTHING)
    assert [segment.screen_ids for segment in analysis.segments] == [[1, 2], [3], [4, 5]]
    assert {segment.event.confidence for segment in analysis.segments} == {CONFIDENCE}


def test_frames_without_a_title_are_neither_stay_nor_thread_and_are_named_by_their_text() -> None:
    screens = {1: shot(1), 2: shot(2), 3: shot(3)}
    texts = {101: "三\n12\nGoogle Search\nAbout", 102: "Monday, November 11"}
    threads = [HistoryThread(thread_id="t1", title=""), HistoryThread(thread_id="t2", title=UNTITLED)]
    history = HistoryPack(threads=threads)
    analysis = index_by_rules(screens, texts, history)
    assert [segment.screen_ids for segment in analysis.segments] == [[1], [2], [3]]
    assert [segment.event.title for segment in analysis.segments] == ["Google Search", "Monday, November 11", UNTITLED]
    assert {segment.merge_hint.decision for segment in analysis.segments} == {"NEW"}
    assert [title_of(segment, screens) for segment in analysis.segments] == ["", "", ""]


def test_summary_claims_only_known_facts() -> None:
    texts = {101: "Invoice 2026-17\nTotal due: 80"}
    (segment,) = index_by_rules({1: shot(1, window_title="Bill - Viewer")}, texts, NOTHING).segments
    assert (
        segment.event.summary == "1 screenshot in Viewer, 2026-01-12 16:00 UTC. Seen: Invoice 2026-17 · Total due: 80"
    )
    assert "PENSTOCK_SCREENSHOTS__VISION_PROVIDER" in NOTE


def test_a_stay_continues_the_thread_of_the_same_title() -> None:
    history = HistoryPack(threads=[HistoryThread(thread_id="t1", title="Inbox – Firefox")])
    (segment,) = index_by_rules({1: shot(1, window_title="Inbox - Firefox")}, {}, history).segments
    assert (segment.merge_hint.decision, segment.merge_hint.thread_id) == ("MERGE", "t1")


def test_files_sites_and_tickets_are_entities_and_frequent_words_keywords() -> None:
    assert entities_in(["see main.py and MAIN.PY, https://docs.example.org/x, PEN-12, a.b@example.org"]) == [
        "main.py",
        "docs.example.org",
        "PEN-12",
    ]
    assert keywords_in(["The parser reads; parser tests", "截图 处理"])[:1] == ["parser"]
    assert "截图" in keywords_in(["截图 处理"])


TIMES = st.integers(-(10**15), 10**15)


@given(
    st.lists(
        st.tuples(st.text(max_size=40), st.text(max_size=20), st.text(max_size=200), TIMES), min_size=1, max_size=6
    )
)
def test_rules_make_nodes_of_any_batch_without_any_provider(frames: list[tuple[str, str, str, int]]) -> None:
    screens = {
        n: shot(n, window_title=title, app_hint=hint, ts_ms=ts) for n, (title, hint, _, ts) in enumerate(frames, 1)
    }
    texts = {screens[n].id: text for n, (_, _, text, _) in enumerate(frames, 1)}
    analysis = index_by_rules(screens, texts, NOTHING)
    sent = {screen: segment.id for screen, segment in screens.items()}
    assert only_sent(analysis, sent).notes == ()
    assert sorted(screen for shot_ in analysis.segments for screen in shot_.screen_ids) == sorted(screens)
    facts = BatchFacts("key", "screen:1", screens)
    expansion = direct(facts, with_threads(analysis, facts).value, analysis, Origin.RULES)
    assert len(expansion.nodes) == len(analysis.segments)
    assert {shot_.made_by for shot_ in expansion.nodes} == {Origin.RULES}
