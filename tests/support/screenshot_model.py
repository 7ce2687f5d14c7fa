"""A vision and text model for the screenshots flow, for a scripted provider, and frames that are new in each test.

In a test: ``model = ScreenshotModel(); ProviderServer(answer=model.answer, picture_answer=model.answer)``. Read the
questions from the provider's records: `question_of(record)`.
"""

import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from itertools import groupby
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from pipeline.flows.screenshots.rules.provenance import Operation
from tests.support.provider_server import Fault, ProviderServer, Record

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Question:
    """One question. `shot_ids`: the screenshots that it shows or names; `titles`: of the nodes, for a merge."""

    operation: Operation
    data: dict[str, Any] = field(repr=False)
    repair: bool
    shot_ids: tuple[int, ...]
    pictures: int
    titles: tuple[str, ...] = ()


Trick = Callable[[Question, dict[str, Any]], str]
"""Makes a bad reply out of the good one."""


def question_of(record: Record) -> Question:
    """Return the question of a call's prompt."""
    content = record.body["messages"][-1]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = next(part["text"] for part in parts if part["type"] == "text")
    data, end = json.JSONDecoder().raw_decode(text)
    repair, pictures = bool(text[end:].strip()), sum(part["type"] == "image_url" for part in parts)
    if "screenshots" in data:
        shots = tuple(shot["screenshot_id"] for shot in data["screenshots"])
        return Question(Operation.ANALYSE, data, repair, shots, pictures)
    if "segments" in data:
        shots = tuple(screen["database_id"] for screen in data["screenshotMapping"])
        return Question(Operation.EXPAND, data, repair, shots, pictures)
    titles = (data["existing"]["title"], data["new"]["title"])
    return Question(Operation.MERGE, data, repair, (), pictures, titles)


class ScreenshotModel:
    """Answers all three operations well, unless a trick changes the reply.

    Segments: one for each run of screens with the same window title (or program), which continues the thread of that
    title if the history names one. Summaries name screenshots as `#ID`, and merged summaries those of both, so that a
    test notices a lost one. `findings`: each segment has one derived fact as well. `pieces`: it expands into this many
    events of one thread, each with a part of its screenshots; Penstock then merges them.
    """

    def __init__(self, *, findings: bool = False, pieces: int = 1) -> None:
        self.findings = findings
        self.pieces = pieces
        self._tricks: dict[Operation, deque[Trick | None]] = {operation: deque() for operation in Operation}
        self._rules: list[Callable[[Question], Trick | None]] = []

    def play(self, operation: Operation, *tricks: Trick | None) -> None:
        """Use up these tricks in order, one for each call of the operation; None: a good reply."""
        self._tricks[operation].extend(tricks)

    def whenever(self, rule: Callable[[Question], Trick | None]) -> None:
        """Ask this rule about each call for which `play` has no trick left."""
        self._rules.append(rule)

    def answer(self, record: Record) -> str:
        """Return the reply to one call: for `Script.answer` and `Script.picture_answer`."""
        question = question_of(record)
        good = {Operation.ANALYSE: self._index, Operation.EXPAND: self._expansion, Operation.MERGE: _merged}
        reply = good[question.operation](question)
        trick = self._trick(question)
        return trick(question, reply) if trick else json.dumps(reply, ensure_ascii=False)

    def _trick(self, question: Question) -> Trick | None:
        if waiting := self._tricks[question.operation]:
            return waiting.popleft()
        return next((trick for rule in self._rules if (trick := rule(question))), None)

    def _index(self, question: Question) -> dict[str, Any]:
        known = {thread["title"]: thread["thread_id"] for thread in question.data["before"]["threads"]}
        runs = groupby(question.data["screenshots"], key=lambda shot: shot["window_title"] or shot["app"] or "Screen")
        return {
            "segments": [
                self._segment(number, title, list(shots), known) for number, (title, shots) in enumerate(runs, 1)
            ],
            "entities": sorted({shot["app"] for shot in question.data["screenshots"] if shot["app"]}),
            "screenshots": [_seen(shot) for shot in question.data["screenshots"]],
        }

    def _segment(self, number: int, title: str, shots: list[dict[str, Any]], known: dict[str, str]) -> dict[str, Any]:
        hint = {"decision": "MERGE", "thread_id": known[title]} if title in known else {"decision": "NEW"}
        ids = [shot["screenshot_id"] for shot in shots]
        fact = {"title": f"About {title}", "summary": named(ids)}
        return {
            "segment_id": f"seg_{number}",
            "screen_ids": [shot["screen_id"] for shot in shots],
            "event": {"title": title, "summary": named(ids), "importance": 6, "confidence": 8},
            "derived": {"knowledge": [fact] if self.findings else [], "state": [], "procedure": [], "plan": []},
            "merge_hint": {"thread_id": None} | hint,
            "keywords": title.casefold().split()[:3],
        }

    def _expansion(self, question: Question) -> dict[str, Any]:
        database = {screen["screen_id"]: screen["database_id"] for screen in question.data["screenshotMapping"]}
        nodes: list[dict[str, Any]] = []
        edges: list[dict[str, Any]] = []
        for segment in question.data["segments"]:
            shots = [database[screen] for screen in segment["screen_ids"]]
            parts = filter(None, (shots[i :: self.pieces] for i in range(self.pieces)))
            nodes += [_node("event", {**segment["event"], "summary": named(part)}, segment, part) for part in parts]
            event = len(nodes) - 1
            for kind, findings in segment["derived"].items():
                for finding in findings:
                    edges.append({"from_index": len(nodes), "to_index": event, "edge_type": "derived_from"})
                    nodes.append(_node(kind, finding, segment, shots))
        return {"nodes": nodes, "edges": edges}


def named(shot_ids: Iterable[int]) -> str:
    """Screenshots as summaries name them."""
    return " ".join(f"#{shot_id}" for shot_id in shot_ids)


def _seen(shot: dict[str, Any]) -> dict[str, Any]:
    guess = {"name": shot["app"] or "Unknown", "confidence": 0.9}
    text = f"text of screenshot {shot['screenshot_id']}"
    return {
        "screenshot_id": shot["screenshot_id"],
        "ocr_text": text,
        "ui_text_snippets": ["File"],
        "app_guess": guess,
    }


def _node(kind: str, finding: dict[str, Any], segment: dict[str, Any], shots: list[int]) -> dict[str, Any]:
    return {
        "kind": kind,
        "thread_id": segment["thread_id"],
        "title": finding["title"],
        "summary": finding["summary"],
        "keywords": segment["keywords"],
        "entities": [{"name": "Penstock", "entityType": "project", "confidence": 8}],
        "importance": 6,
        "confidence": 8,
        "screenshot_ids": shots,
        "event_time": None,
    }


def _merged(question: Question) -> dict[str, Any]:
    existing, new = question.data["existing"], question.data["new"]
    words = dict.fromkeys([*existing["summary"].split(), *new["summary"].split()])
    return {**existing, "summary": " ".join(words)}


# Tricks.


def no_json(_question: Question, _reply: dict[str, Any]) -> str:
    """Return words instead of JSON."""
    return "Certainly! I see a person at work."


def cut_off(_question: Question, reply: dict[str, Any]) -> str:
    """Return JSON that ends in the middle of its last segment. The segments before it are usable."""
    text = json.dumps(reply)
    return text[: text.rindex('"merge_hint"')]


def strangers(_question: Question, reply: dict[str, Any]) -> str:
    """Name unsent screenshots beside the sent ones: in segments, in the list of read ones, and in nodes."""
    for segment in reply.get("segments", []):
        segment["screen_ids"] = [*segment["screen_ids"], 990]
    for node in reply.get("nodes", []):
        node["screenshot_ids"] = [*node["screenshot_ids"], 999_990]
    if "segments" in reply:
        reply["screenshots"].append({"screenshot_id": 999_991, "ocr_text": "never sent"})
    return json.dumps(reply)


def only_strangers(_question: Question, reply: dict[str, Any]) -> str:
    """Name only unsent screenshots in all segments."""
    for segment in reply["segments"]:
        segment["screen_ids"] = [991, 992]
    return json.dumps(reply)


def unknown_threads(_question: Question, reply: dict[str, Any]) -> str:
    """Name threads that the request did not contain."""
    for segment in reply.get("segments", []):
        segment["merge_hint"] = {"decision": "MERGE", "thread_id": "thread_of_another_source"}
    for node in reply.get("nodes", []):
        node["thread_id"] = "thread_of_another_source"
    return json.dumps(reply)


def empty(_question: Question, reply: dict[str, Any]) -> str:
    """Return valid JSON without content."""
    return json.dumps({key: [] for key in reply})


def bad_segment(_question: Question, reply: dict[str, Any]) -> str:
    """Add a segment without an event. The others are usable."""
    reply["segments"].append({"segment_id": "broken", "screen_ids": [1], "event": None})
    return json.dumps(reply)


# Faults of the wire by operation, for `Script.rule`.


def faults_on(
    operation: Operation, *faults: Fault | None, shots: Iterable[int] = ()
) -> Callable[[Record], Fault | None]:
    """Use up `faults`, one for each call of the operation; with `shots`, only for calls that show one of them."""
    waiting = deque(faults)
    wanted = set(shots)

    def rule(record: Record) -> Fault | None:
        if record.path != CHAT or not waiting:
            return None
        question = question_of(record)
        fits = question.operation is operation and (not wanted or wanted & set(question.shot_ids))
        return waiting.popleft() if fits else None

    return rule


def always_on(operation: Operation, fault: Fault) -> Callable[[Record], Fault | None]:
    """Return a rule with the same fault for every call of the operation."""

    def rule(record: Record) -> Fault | None:
        return fault if record.path == CHAT and question_of(record).operation is operation else None

    return rule


# What the provider saw.


def questions(provider: ProviderServer, operation: Operation, status: int | None = None) -> list[Question]:
    """Return every call of an operation (answered with this status), in the order of arrival."""
    return [
        question
        for record, question in _chats(provider)
        if question.operation is operation and status in {None, record.status}
    ]


def shown(provider: ProviderServer, operation: Operation, status: int | None = 200) -> Counter[tuple[int, ...]]:
    """Count the calls, answered with this status, that showed each set of screenshots."""
    return Counter(question.shot_ids for question in questions(provider, operation, status))


def _chats(provider: ProviderServer) -> Iterator[tuple[Record, Question]]:
    return ((record, question_of(record)) for record in list(provider.records) if record.path == CHAT)


def calls_by_operation(provider: ProviderServer) -> dict[Operation, int]:
    """Count all calls, answered or not."""
    return dict(Counter(question.operation for _, question in _chats(provider)))


_plain = ScreenshotModel()


def answer(record: Record) -> str:
    """A good reply: for `python -m tests.support.provider_server --answers tests.support.screenshot_model:answer`."""
    return _plain.answer(record)


def titles_in_runs(count: int, run: int, names: Sequence[str] = ()) -> list[str]:
    """Return window titles for `count` screenshots, a new one every `run`; `names` repeat, else all differ."""
    return [names[i // run % len(names)] if names else f"Window {i // run}" for i in range(count)]


# Frames.

FRAME_SIZE = (640, 400)
_CELLS = (8, 5)


def frame(number: int, size: tuple[int, int] = FRAME_SIZE) -> Image.Image:
    """Draw frame `number`: a window of coloured panes and its number in words; the same for the same number."""
    chance = random.Random(number)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    width, height = size[0] / _CELLS[0], size[1] / _CELLS[1]
    for column in range(_CELLS[0]):
        for row in range(_CELLS[1]):
            left, top = column * width, row * height
            shade = chance.choice((20, 90, 160, 240))
            draw.rectangle((left, top, left + width, top + height), fill=(shade, shade, chance.choice((30, 200))))
    draw.rectangle((0, 0, size[0], 44), fill="white")
    draw.text((12, 4), f"Frame {number}", fill="black", font=_font())
    return image


def frame_bytes(number: int, suffix: str = ".png", size: tuple[int, int] = FRAME_SIZE) -> bytes:
    """Return frame `number` as a file."""
    out = BytesIO()
    frame(number, size).save(out, "JPEG" if suffix in {".jpg", ".jpeg"} else "PNG")
    return out.getvalue()


@lru_cache(maxsize=1)
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(32)
