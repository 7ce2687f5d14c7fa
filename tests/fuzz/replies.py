"""What models, providers, nodes and music servers answer."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, get_args

from pydantic import SecretStr

from pipeline.engine.errors import UnitError
from pipeline.flows.documents.rules import result, split_tables
from pipeline.flows.music.library import subsonic
from pipeline.flows.music.library.songs import LibraryError
from pipeline.flows.music.rules import findings, schemas
from pipeline.flows.music.rules.prompts import SongFacts
from pipeline.flows.screenshots.rules import expansion, heuristics, node_merge, shard_merge, vision_reply
from pipeline.flows.screenshots.rules.batches import HistoryPack, Shot
from pipeline.flows.screenshots.rules.schemas import Segment, SegmentEvent, VlmIndex
from pipeline.flows.screenshots.states import NodeKind
from pipeline.nodes import protocol
from pipeline.providers import errors, node_pages, openai_compatible, replies
from pipeline.reading.export import docling, markdown, markup
from pipeline.reading.replies import wrapping
from pipeline.reading.replies.form import Form, Kind
from pipeline.reading.replies.forms import parse
from pipeline.reading.replies.problems import Expected, check
from pipeline.settings.music import MusicSettings
from pipeline.settings.providers import ProviderProfile
from tests.fuzz.target import Target, is_storable, json_seeds, text_of, texts
from tests.support import model_replies

NOW = datetime(2026, 11, 22, tzinfo=UTC)
_SENT = {1: 101, 2: 102}
_SHOTS = {screen: Shot(shot, 1000 * screen, NOW, app_hint="Code") for screen, shot in _SENT.items()}
_FACTS = expansion.BatchFacts("key", "screen:1", _SHOTS, frozenset({"t1"}))
_INDEX = VlmIndex(segments=[Segment(screen_ids=[1, 2], event=SegmentEvent(title="An event"))], entities=["pool.py"])
_KEY = SecretStr("sk-secret-key")
_TARGET = errors.Target("vlm", "a-model", 60.0, _KEY)


def _all_storable(value: object) -> None:
    """Whatever is in it can be written to a database as JSON."""
    assert is_storable(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str))


def _vision(data: bytes) -> None:
    text = replies.clean(text_of(data))
    indexes: list[VlmIndex] = []
    with suppress(replies.BadReply):
        indexes.append(vision_reply.read_index(text, _SENT).value)
    with suppress(replies.BadReply):
        best = vision_reply.best_index(["", text], _SENT)
        _all_storable(best.notes)
        indexes.append(best.value)
    for index in indexes:
        assert all(set(segment.screen_ids) <= set(_SENT) for segment in index.segments)
        _all_storable(index.model_dump())
        merged = shard_merge.merge_shards([index, _INDEX, index], 3)
        assert len(merged.segments) <= 3
        decided = expansion.with_threads(merged, _FACTS)
        drafts = expansion.direct(_FACTS, decided.value, merged)
        assert len({node.origin_key for node in drafts.nodes}) == len(drafts.nodes)
        assert all(NOW.timestamp() > node.event_time_ms / 1000 for node in drafts.nodes)
        expansion.evidence_of(merged, _FACTS)


def _expansion(data: bytes) -> None:
    text = replies.clean(text_of(data))
    read = expansion.usable_expansion(text)
    with suppress(replies.BadReply):
        read = expansion.read_expansion(text)
    if read is None:
        return
    segments = expansion.with_threads(_INDEX, _FACTS).value
    drafts = expansion.expanded(_FACTS, segments, read, _INDEX)
    _all_storable(drafts.notes)
    keys = {node.origin_key for node in drafts.nodes}
    assert len(keys) == len(drafts.nodes) >= 1
    assert all(edge.from_key in keys and edge.to_key in keys for edge in drafts.edges)
    for node in drafts.nodes:
        assert 0 <= node.importance <= 10
        assert set(node.screenshot_ids) <= set(_SENT.values())
        _all_storable(
            [node.title, node.summary, node.thread_id, *node.keywords, *(e.model_dump() for e in node.entities)]
        )


def _merge(data: bytes) -> None:
    reply = node_merge.read_merge(replies.clean(text_of(data)))
    known = node_merge.MergeNode(1, NodeKind.EVENT, "t1", "A title", "A summary", ("one",))
    merged = node_merge.by_model(known, node_merge.MergeNode(2, NodeKind.EVENT, "t1", "Another"), reply)
    _all_storable(
        [merged.title, merged.summary, *merged.keywords, *(entity.model_dump() for entity in merged.entities)]
    )
    assert len(merged.keywords) <= 10


def _songs(data: bytes) -> None:
    text = replies.clean(text_of(data))
    answers = schemas.usable(text)
    with suppress(replies.BadReply):
        answers = schemas.read_reply(text)
    matched, ignored = schemas.matched(answers, {"1": 7, "2": 8})
    assert len(matched) + ignored == len(answers)
    assert schemas.load(schemas.dump(matched)) == matched
    for analysis in matched.values():
        _all_storable(findings.song_columns(analysis, SongFacts(7, "1", "A song", "")))


def _plain_reply(data: bytes) -> None:
    text = text_of(data)
    with suppress(replies.BadReply):
        replies.as_json(text, max_chars=100_000)
    replies.lists_in(text, ("a", "b"))
    replies.only_list_in(text, "songs")
    assert wrapping.unwrap(text) in text.replace("\r\n", "\n")


def _document_model(data: bytes) -> None:
    """A reply of a document model, in all of their forms."""
    text = replies.clean(text_of(data))
    for kind in get_args(Kind):
        parsed = parse(Form(kind), text, (1000, 1400))
        _all_storable([parsed.text, parsed.blocks])
        boxes = [block["bbox"] for block in parsed.blocks if block["bbox"]]
        assert all(0 <= left < right <= 1000 and 0 <= top < bottom <= 1400 for left, top, right, bottom in boxes)
        check(text, parsed, finish_reason="stop", expected=Expected(words=["a"] * 30))


def _provider_error(data: bytes) -> None:
    status, _, body = data.partition(b"\n")
    headers = {"retry-after": text_of(status[3:]), "x-ratelimit-reset-requests": text_of(status[3:])}
    code = int(status[:3]) if status[:3].isdigit() else 429
    error = errors.from_reply(max(300, code), headers, body, _TARGET, NOW)
    message = str(error)
    assert len(message) <= errors.MAX_MESSAGE
    assert is_storable(message)
    assert "\n" not in message
    assert "sk-secret-key" not in message
    assert error.retry_after_s is None or 0 <= error.retry_after_s <= errors.MAX_WAIT_S


def _provider_reply(data: bytes) -> None:
    """A whole reply of a chat, of embeddings and of a list of models."""
    client = openai_compatible.OpenAICompatible("vlm", ProviderProfile(model="a-model", api_key=_KEY))
    client._call = lambda send: openai_compatible._Reply(client._parse(data), 1)  # type: ignore[method-assign]
    with suppress(UnitError):
        answer = client.complete("a prompt")
        assert is_storable(answer.model)
        assert 0 <= answer.usage.input_tokens + answer.usage.output_tokens < 1_000_000
    with suppress(UnitError):
        embeddings = client.embed(["one", "two"])
        assert len(embeddings.vectors) == 2
        assert all(-1e39 < value < 1e39 for vector in embeddings.vectors for value in vector)
    client.probe()


def _node_message(data: bytes) -> None:
    for text in (data, data.decode("utf-8", "replace")):
        for kind in (protocol.from_node, protocol.to_node, protocol.from_session, protocol.to_session):
            with suppress(protocol.BadMessage):
                message = protocol.parse(text, kind)
                if message is not None:
                    parsed = protocol.parse(sent := protocol.encode(message), kind)
                    assert parsed is not None
                    assert protocol.encode(parsed) == sent


def _node_page(data: bytes) -> None:
    reply = _loaded(data)
    result = replies.as_model(node_pages._PageResult, reply)
    if result.layout is None or result.layout.cells > node_pages._MAX_CELLS:
        return
    layout = result.layout.as_dict(1, {"a.png": "pictures/page-0001-1.png"})
    _all_storable(layout)
    page = {"page": 1, "page_source": 1, "status": "COMPLETED", **layout}
    _exported([page])


def _markdown(data: bytes) -> None:
    """A page's text, through every export."""
    text = replies.clean(text_of(data))
    halves: list[dict[str, Any]] = [
        {"page": number, "page_source": number, "status": "COMPLETED", "content": part, "error": ""}
        for number, part in ((1, text[: len(text) // 2]), (2, text[len(text) // 2 :]))
    ]
    joined = result.page_texts(halves, {})
    assert len(joined) == 2
    result.joinable(halves)
    split_tables.join_tables([text, text], [None, None])
    markdown.plain_text(text)
    _exported([result.layout_page(half, {}) for half in halves])


def _exported(pages: list[dict[str, Any]]) -> None:
    _all_storable(docling.document(docling.Parts(pages), filename="a.pdf", mimetype="application/pdf", digest=1))
    assert "<script" not in "".join(markup.html("a", docling.Parts(pages)))
    for write in (markup.doctags, markup.text):
        "".join(write(docling.Parts(pages)))


def _music_server(data: bytes) -> None:
    server = object.__new__(subsonic.SubsonicServer)
    server._settings = MusicSettings(server_url="http://example.org", user="u")
    reply = server._read(200, data)
    result_ = reply.get("searchResult3")
    listed = result_.get("song") if isinstance(result_, dict) else None
    for item in listed if isinstance(listed, list) else []:
        song = subsonic._song(item)
        if song is not None:
            assert is_storable("".join((song.server_id, song.title, song.artist, song.album, song.genre, song.path)))
            assert song.title


def _screen_text(data: bytes) -> None:
    """What recognition reads on a screen, and titles of windows."""
    title, _, text = replies.clean(text_of(data)).partition("\n")
    shots = {
        1: Shot(101, 10**20, NOW, window_title=title),
        2: Shot(102, 5, NOW, app_hint=text[:30], window_title=title),
    }
    index = heuristics.index_by_rules(shots, {101: text, 102: title}, HistoryPack())
    assert sorted(screen for segment in index.segments for screen in segment.screen_ids) == [1, 2]
    _all_storable(index.model_dump())
    assert all(segment.event.title for segment in index.segments)


def _loaded(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise replies.BadReply("not JSON") from None


_GOOGLE = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "try again in 5s",
        "details": [{"violations": [{"quotaId": "GenerateRequestsPerDay"}]}, {"retryDelay": "34s", "reason": "x"}],
    }
}
_OPENAI = {"error": {"message": "per day", "type": "insufficient_quota", "param": "max_tokens", "code": "rate_limit"}}
_MARKS = (
    "|",
    "|---|",
    "<table>",
    "<tr>",
    "</tr>",
    '<td colspan="9999">',
    "```",
    "~~~",
    "![",
    "](",
    "- ",
    "1. ",
    "> ",
    "    ",
    "&",
    "<script",
)
_REPLY_MARKS = ("```json\n", "```", '"segments":[', "[{", "}]", "\\u0000", "\\ud800", "NaN", "1e999", "[" * 3000)

TARGETS = (
    Target("vision-reply", _vision, (), words=_REPLY_MARKS, shaped=True),
    Target("expansion-reply", _expansion, (), words=_REPLY_MARKS, shaped=True),
    Target("merge-reply", _merge, (replies.BadReply,), words=_REPLY_MARKS, shaped=True),
    Target("song-reply", _songs, (), words=_REPLY_MARKS, shaped=True),
    Target(
        "plain-reply",
        _plain_reply,
        (),
        texts('```json\n{"a": [{}, {"b": 1}], "b": []}\n```', '{"songs": [1, {'),
        _REPLY_MARKS,
    ),
    Target(
        "document-model",
        _document_model,
        (),
        texts(*(reply.raw[:3000] for reply in model_replies.replies("good"))),
        (
            *_REPLY_MARKS,
            *_MARKS,
            "<|ref|>",
            "<|det|>[[",
            "<|box_start|>",
            "<loc_1>",
            "<fcel>",
            "<lcel>",
            "](1,2,3,4)",
            "$",
        ),
    ),
    Target(
        "provider-error",
        _provider_error,
        (),
        lambda: [b"429 5\n" + seed for seed in json_seeds(_GOOGLE, _OPENAI)()],
        ("retry-after", "Bearer ", "data:image/png;base64,AAAA"),
    ),
    Target("provider-reply", _provider_reply, (UnitError,), words=("usage", "choices", "error"), shaped=True),
    Target("node-message", _node_message, (), words=("type", "attachments", "NaN", "\\ud800"), shaped=True),
    Target("node-page", _node_page, (replies.BadReply,), words=("rows", "columns", "header"), shaped=True),
    Target("markdown", _markdown, (), words=_MARKS),
    Target("music-server", _music_server, (LibraryError,), words=("subsonic-response", "song"), shaped=True),
    Target(
        "screen-text",
        _screen_text,
        (),
        texts("● a.py — pool – Code\nFile Edit\nhttp://x.org/a JIRA-1\n12:30"),
        ("–", "://", "www.", "(1) ", "File", "\n"),
    ),
)
