"""Reads a vision model's reply about the screenshots of its call. Rules: docs/sources/screenshots.md#vision."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pipeline.flows.screenshots.rules.schemas import Finding, SeenScreenshot, Segment, VlmIndex, unique
from pipeline.flows.screenshots.states import DERIVED
from pipeline.providers.replies import BadReply, Read, as_json, as_model, lists_in, valid

_MOST_ENTITIES = 500
Sent = Mapping[int, int]
"""Screen id (its position in the batch, from 1) → our screenshot id, for the screenshots of a call.

Positions in the batch, not in the shard: else each shard would have a screen 1, and merged segments wrong pictures.
"""


def read_index(text: str, sent: Sent) -> Read[VlmIndex]:
    """Parse a reply as an index of the sent screenshots; the notes name the parts left out.

    Raises `BadReply` for other content, and if no segment names a sent screenshot.
    """
    index = as_model(VlmIndex, as_json(text))
    known = only_sent(index, sent)
    if index.segments and not known.value.segments:
        raise BadReply(
            f"segments: none names a screenshot that was sent (screen_ids {', '.join(map(str, sorted(sent)))})"
        )
    return known


def usable_index(text: str, sent: Sent) -> Read[VlmIndex] | None:
    """Parse the valid parts of a reply about the sent screenshots; None if no segment is left."""
    lists = lists_in(text, ("segments", "entities", "screenshots"))
    segments = [segment for item in lists["segments"] if (segment := _segment(item)) is not None]
    seen = valid(SeenScreenshot, lists["screenshots"])
    names = [name for name in lists["entities"] if isinstance(name, str)]
    index = VlmIndex(segments=segments, entities=names, screenshots=seen)
    known = only_sent(index, sent)
    return known if known.value.segments else None


def best_index(replies: Sequence[str], sent: Sent) -> Read[VlmIndex]:
    """Choose the index after a repair: the latest entirely valid reply, else the valid parts of the reply with
    most segments. `replies`: the first reply and its repair. Raises `BadReply` if neither has a valid segment of a sent
    screenshot."""
    problem = BadReply("no reply came")
    for reply in reversed(replies):
        try:
            return read_index(reply, sent)
        except BadReply as error:
            problem = error
    parts = [index for reply in reversed(replies) if (index := usable_index(reply, sent)) is not None]
    if not parts:
        raise problem
    best = max(parts, key=lambda index: len(index.value.segments))
    return Read(best.value, (*best.notes, f"used only the valid parts of the reply: {problem}"))


def _segment(item: object) -> Segment | None:
    """Parse a segment and drop its invalid findings; None if other parts are invalid."""
    if not isinstance(item, dict):
        return None
    derived = item.get("derived")
    findings: dict[str, Any] = {}
    if isinstance(derived, dict):
        for kind in DERIVED:
            listed = derived.get(kind.value)
            findings[kind.value] = valid(Finding, listed) if isinstance(listed, list) else []
    try:
        return Segment.model_validate({**item, "derived": findings})
    except (ValidationError, RecursionError):
        return None


def only_sent(index: VlmIndex, sent: Sent) -> Read[VlmIndex]:
    """Return the index without unsent screenshots and without segments that name only those; notes name each
    omission."""
    notes: list[str] = []
    segments: list[Segment] = []
    for segment in index.segments:
        screens = sorted({screen for screen in segment.screen_ids if screen in sent})
        if strangers := [screen for screen in segment.screen_ids if screen not in sent]:
            named = ", ".join(str(screen)[:20] for screen in strangers[:5])
            notes.append(f"“{segment.event.title}” names screens that were not sent: {named}")
        if screens:
            segments.append(segment.model_copy(update={"screen_ids": screens}))
        else:
            notes.append(f"“{segment.event.title}” was left out: it names no sent screen")
    most = 20 + 4 * len(sent)  # merging compares them with one another
    if len(segments) > most:
        notes.append(f"used only the first {most} of {len(segments):,} segments")
    if len(index.entities) > _MOST_ENTITIES:
        notes.append(f"used only the first {_MOST_ENTITIES} of {len(index.entities):,} entities")
    sent_ids = set(sent.values())
    seen: dict[int, SeenScreenshot] = {}
    for shot in index.screenshots:
        if shot.screenshot_id in sent_ids:
            seen.setdefault(shot.screenshot_id, shot)
        else:
            notes.append(f"the reply describes a screenshot that was not sent: {shot.screenshot_id}")
    entities = unique(index.entities[:_MOST_ENTITIES])
    value = VlmIndex(segments=segments[:most], entities=entities, screenshots=list(seen.values()))
    return Read(value, tuple(notes))
