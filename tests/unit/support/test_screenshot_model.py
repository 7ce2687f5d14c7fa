"""The scripted model of `tests.support.screenshot_model` answers what the flow asks, in shapes that the flow reads."""

import base64
import json
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from pipeline.flows.screenshots.rules import prompts
from pipeline.flows.screenshots.rules.batches import HistoryPack, HistoryThread, Shot
from pipeline.flows.screenshots.rules.expansion import evidence_of, expanded, read_expansion, with_threads
from pipeline.flows.screenshots.rules.node_merge import MergeNode, read_merge
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.vision_reply import read_index, usable_index
from pipeline.flows.screenshots.states import NodeKind
from pipeline.providers.replies import BadReply
from tests.support import screenshot_model as model_support
from tests.support.provider_server import Fault, ProviderServer
from tests.support.screenshot_model import ScreenshotModel, frame_bytes, questions, shown
from tests.unit.screenshots.factories import NOW, facts, shot

SENT = {number: 100 + number for number in range(1, 6)}
HISTORY = HistoryPack(threads=[HistoryThread(thread_id="thread_old", title="Mail")])


@pytest.fixture
def model() -> ScreenshotModel:
    return ScreenshotModel(findings=True)


@pytest.fixture
def provider(model: ScreenshotModel) -> Iterator[ProviderServer]:
    with ProviderServer(answer=model.answer, look=model.answer) as server:
        yield server


def ask(provider: ProviderServer, text: str, pictures: int = 0, after: str = "") -> str:
    url = "data:image/png;base64," + base64.b64encode(frame_bytes(1)).decode()
    parts: list[dict[str, Any]] = [{"type": "text", "text": text + after}]
    parts += [{"type": "image_url", "image_url": {"url": url}} for _ in range(pictures)]
    user = {"role": "user", "content": parts if pictures else text + after}
    body = {"model": "m", "messages": [{"role": "system", "content": "Answer."}, user]}
    with urlopen(Request(f"{provider.base_url}/chat/completions", json.dumps(body).encode())) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def screens() -> dict[int, Shot]:
    titles = ["Mail", "Mail", "Editor", "Editor", "Editor"]
    return {n: shot(n, app_hint="App", window_title=title) for n, title in enumerate(titles, 1)}


def look(provider: ProviderServer, after: str = "") -> str:
    return ask(provider, prompts.vision_prompt(screens(), HISTORY), 5, after)


def test_segments_follow_titles_and_go_on_with_the_thread_of_the_same_title(provider: ProviderServer) -> None:
    index = read_index(look(provider), SENT)
    assert index.notes == ()
    found = [(s.event.title, s.screen_ids, s.merge_hint.thread_id) for s in index.value.segments]
    assert found == [("Mail", [1, 2], "thread_old"), ("Editor", [3, 4, 5], "")]
    assert [seen.screenshot_id for seen in index.value.screenshots] == list(SENT.values())
    assert shown(provider, Operation.ANALYSE) == {tuple(SENT.values()): 1}


def test_expansion_has_every_segment_and_finding_as_a_node(provider: ProviderServer) -> None:
    index = read_index(look(provider), SENT).value
    batch = facts()
    segments = with_threads(index, batch).value
    prompt = prompts.expand_prompt(batch, segments, evidence_of(index, batch), NOW, "UTC")
    expansion = expanded(batch, segments, read_expansion(ask(provider, prompt)), index)
    assert [node.kind for node in expansion.nodes] == [NodeKind.EVENT, NodeKind.KNOWLEDGE] * 2
    assert (len(expansion.edges), expansion.notes) == (2, ())


def test_merge_keeps_what_both_nodes_name(provider: ProviderServer) -> None:
    old, new = (
        MergeNode(n, NodeKind.EVENT, "t", "Mail", summary) for n, summary in ((1, "#101 #102"), (2, "#102 #103"))
    )
    merged = read_merge(ask(provider, prompts.merge_prompt(old, new)))
    assert (merged.title, merged.summary) == ("Mail", "#101 #102 #103")
    assert questions(provider, Operation.MERGE)[0].titles == ("Mail", "Mail")


@pytest.mark.parametrize("trick", [model_support.no_json, model_support.only_strangers])
def test_replies_of_no_use_are_answered_well_when_they_are_to_be_mended(
    provider: ProviderServer, model: ScreenshotModel, trick: model_support.Trick
) -> None:
    model.play(Operation.ANALYSE, trick)
    with pytest.raises(BadReply):
        read_index(look(provider), SENT)
    assert read_index(look(provider, "\n\nYour reply to this was: …"), SENT).value.segments
    assert [asked.repair for asked in questions(provider, Operation.ANALYSE)] == [False, True]


def test_broken_replies_have_parts_that_can_be_used(provider: ProviderServer, model: ScreenshotModel) -> None:
    model.play(Operation.ANALYSE, model_support.bad_segment, model_support.cut_off)
    for segments in (2, 1):
        text = look(provider)
        with pytest.raises(BadReply):
            read_index(text, SENT)
        usable = usable_index(text, SENT)
        assert usable is not None
        assert len(usable.value.segments) == segments


def test_faults_meet_only_calls_of_their_operation_and_screenshots(provider: ProviderServer) -> None:
    provider.script.rule = model_support.faults_on(Operation.ANALYSE, Fault("html"), Fault("html"), shots=[999])
    look(provider)
    provider.script.rule = model_support.faults_on(Operation.ANALYSE, Fault("refusal"), shots=[101])
    with pytest.raises(BadReply):
        read_index(look(provider), SENT)
    look(provider)
    assert provider.stats(records=False)["by_status"] == {"200": 3}
