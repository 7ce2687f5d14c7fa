"""What a vision model's reply says of the screenshots that it was sent. Rules: docs/sources/screenshots.md#vision."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pipeline.flows.screenshots.rules.schemas import Finding, SeenScreenshot, Segment, VlmIndex, unique
from pipeline.flows.screenshots.states import DERIVED
from pipeline.providers.replies import BadReply, Read, as_json, as_model, lists_in, valid

Sent = Mapping[int, int]
"""Screen id (its place in the batch, from 1) → our screenshot id, of the screenshots that a call showed.

Places in the batch, not in the shard: otherwise each shard had a screen 1, and merged segments the wrong pictures.
"""


def read_index(text: str, sent: Sent) -> Read[VlmIndex]:
    """The reply as an index of the screenshots that were sent; its notes say what was left out.

    Raises `BadReply` for anything but such JSON, and if no segment names a screenshot that was sent.
    """
    index = as_model(VlmIndex, as_json(text))
    known = only_sent(index, sent)
    if index.segments and not known.value.segments:
        raise BadReply(
            f"segments: none names a screenshot that was sent (screen_ids {', '.join(map(str, sorted(sent)))})"
        )
    return known


def usable_index(text: str, sent: Sent) -> Read[VlmIndex] | None:
    """The valid parts of a reply, whatever is wrong with the rest; None if no segment is left."""
    lists = lists_in(text, ("segments", "entities", "screenshots"))
    segments = [found for item in lists["segments"] if (found := _segment(item)) is not None]
    seen = valid(SeenScreenshot, lists["screenshots"])
    names = [name for name in lists["entities"] if isinstance(name, str)]
    index = VlmIndex(segments=segments, entities=names, screenshots=seen)
    known = only_sent(index, sent)
    return known if known.value.segments else None


def best_index(replies: Sequence[str], sent: Sent) -> Read[VlmIndex]:
    """What to take after the repair: the latest reply that is valid as a whole, else the valid parts of the one with
    most segments. `replies`: the first one and its repair. Raises `BadReply` if neither has any."""
    problem = BadReply("no reply came")
    for reply in reversed(replies):
        try:
            return read_index(reply, sent)
        except BadReply as error:
            problem = error
    parts = [found for reply in reversed(replies) if (found := usable_index(reply, sent)) is not None]
    if not parts:
        raise problem
    best = max(parts, key=lambda found: len(found.value.segments))
    return Read(best.value, (*best.notes, f"only the valid parts of the reply were taken: {problem}"))


def _segment(item: object) -> Segment | None:
    """The segment without its invalid findings; None if more is wrong."""
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
    """The index without screenshots that were not sent, and without segments that name no others."""
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
            notes.append(f"“{segment.event.title}” was left out: it names no screen that was sent")
    ours = set(sent.values())
    seen: dict[int, SeenScreenshot] = {}
    for shot in index.screenshots:
        if shot.screenshot_id in ours:
            seen.setdefault(shot.screenshot_id, shot)
        else:
            notes.append(f"a screenshot that was not sent was described: {shot.screenshot_id}")
    value = VlmIndex(segments=segments, entities=unique(index.entities), screenshots=list(seen.values()))
    return Read(value, tuple(notes))
