from hypothesis import given
from hypothesis import strategies as st

from pipeline.flows.screenshots.rules.schemas import Segment, VlmIndex
from pipeline.flows.screenshots.rules.shard_merge import merge_shards, similar
from tests.unit.screenshots.factories import index, parsed, segment

TITLES = ("Reading mail", "Writing code", "Watching a talk", "Paying a bill", "Drawing plans")


def shard(*segments: Segment) -> VlmIndex:
    return VlmIndex(segments=list(segments))


def test_a_segment_that_a_boundary_cut_is_rejoined() -> None:
    left = shard(parsed("Mail", (1,)), parsed("Writing the parser", (4, 5)))
    right = shard(parsed("Writing the parser", (6, 7)), parsed("Mail", (8,)))
    merged = merge_shards([left, right], 10)
    assert [(part.event.title, part.screen_ids) for part in merged.segments] == [
        ("Mail", [1]),
        ("Writing the parser", [4, 5, 6, 7]),
        ("Mail", [8]),
    ]
    assert [part.segment_id for part in merged.segments] == ["seg_1", "seg_2", "seg_3"]


def test_a_segment_may_run_through_three_shards() -> None:
    merged = merge_shards([shard(parsed("A talk", (n,))) for n in (1, 2, 3)], 10)
    assert [part.screen_ids for part in merged.segments] == [[1, 2, 3]]


def test_other_threads_and_other_titles_stay_apart() -> None:
    old = {"decision": "MERGE", "thread_id": "thread_old"}
    merged = merge_shards([shard(parsed("A", (1,))), shard(parsed("A", (2,), merge_hint=old))], 10)
    assert len(merged.segments) == 2
    assert len(merge_shards([shard(parsed("A", (1,))), shard(parsed("B", (2,)))], 10).segments) == 2


def test_joining_keeps_both_summaries_all_findings_and_the_best_scores() -> None:
    more = {"title": "Writing code", "summary": "A test fails.", "importance": 9, "confidence": 2}
    plan = {"plan": [{"title": "Fix it"}], "knowledge": [{"title": "Fact", "summary": "Tests run"}]}
    merged = merge_shards(
        [
            shard(parsed("Writing code", (1,))),
            shard(parsed("x", (2,), event=more, derived=plan, keywords=["Test", "b"])),
        ],
        10,
    )
    (joined,) = merged.segments
    assert (joined.event.importance, joined.event.confidence) == (9, 8)
    assert set(joined.event.summary.split("\n")) == {"A test fails.", "Writing code in an editor."}
    assert ([x.title for x in joined.derived.plan], len(joined.derived.knowledge)) == (["Fix it"], 1)
    assert [word.casefold() for word in joined.keywords] == ["test", "b"]


def test_surplus_segments_are_joined_to_neighbours_and_never_dropped() -> None:
    parts = [parsed(title, (n,)) for n, title in enumerate(TITLES, 1)]
    parts[1].event.importance = 1
    merged = merge_shards([shard(*parts)], 4)
    assert len(merged.segments) == 4
    texts = "\n".join(f"{part.event.title}\n{part.event.summary}" for part in merged.segments)
    assert all(title in texts for title in TITLES)


def test_entities_and_screenshots_are_not_repeated() -> None:
    analysis = VlmIndex.model_validate(index(segment(), shown=(101, 102)))
    other = VlmIndex.model_validate(
        {"segments": [], "entities": ["PENSTOCK", "Ann"], "screenshots": analysis.screenshots}
    )
    merged = merge_shards([analysis, other], 10)
    assert merged.entities == ["Penstock", "Ann"]
    assert [shot.screenshot_id for shot in merged.screenshots] == [101, 102]


def test_similar_titles_share_most_of_their_words() -> None:
    assert similar("Writing the parser", "writing the  Parser!")
    assert not similar("Writing the parser", "Reading the news")
    assert similar("…", "…")
    assert not similar("…", "word")


@st.composite
def shards(draw: st.DrawFn) -> list[VlmIndex]:
    analyses = []
    for number in range(draw(st.integers(0, 4))):
        screens = range(number * 5 + 1, number * 5 + 6)
        parts = [
            parsed(
                draw(st.sampled_from(TITLES)),
                tuple(draw(st.sets(st.sampled_from(screens), min_size=1))),
                derived={"plan": [{"title": f"plan {number}.{place}"}]},
            )
            for place in range(draw(st.integers(0, 5)))
        ]
        analyses.append(shard(*parts))
    return analyses


@given(shards(), st.integers(1, 12))
def test_no_segment_is_lost_or_repeated(results: list[VlmIndex], most: int) -> None:
    merged = merge_shards(results, most)
    before = [part for result in results for part in result.segments]
    assert len(merged.segments) <= min(most, len(before))
    for part in before:
        (plan,) = part.derived.plan
        holders = [other for other in merged.segments if plan in other.derived.plan]
        assert len(holders) == 1
        assert set(part.screen_ids) <= set(holders[0].screen_ids)
        text = f"{holders[0].event.title}\n{holders[0].event.summary}"
        assert part.event.title in text or "…" in text
    same = [(tuple(part.screen_ids), part.event.title) for part in merged.segments]
    assert len(same) == len(set(same)) or most < len(before)
    assert len({part.segment_id for part in merged.segments}) == len(merged.segments)
