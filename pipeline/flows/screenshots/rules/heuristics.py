"""Makes segments without a vision model, from window titles, recognised text and rules. Their notes say so."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pipeline.flows.screenshots.rules import headings
from pipeline.flows.screenshots.rules.batches import HistoryPack, Shot
from pipeline.flows.screenshots.rules.headings import DASHES, FILE, SeenLine
from pipeline.flows.screenshots.rules.schemas import (
    MAX_KEYWORDS,
    MAX_NAME,
    MAX_OCR,
    MAX_SNIPPETS,
    MAX_SUMMARY,
    MAX_TITLE,
    AppGuess,
    MergeHint,
    SeenScreenshot,
    Segment,
    SegmentEvent,
    VlmIndex,
    clipped,
    unique,
)

NOTE = (
    "No vision model looked at these screenshots: their segments come from window titles, recognised text and rules. "
    "Name a provider in PENSTOCK_SCREENSHOTS__VISION_PROVIDER for more."
)
TEXT_NOTE = "No text model expanded these segments: each became a node directly."
CONFIDENCE = 3
"""Of 10: titles name the person's place, not the activity."""
GAP_MS = 120_000
"""A longer pause ends a segment."""

UNTITLED = "Screen without a title"
_MARKS = re.compile(r"^(?:[●•*✳]\s*|\(\d+\+?\)\s*|\[\d+\+?\]\s*)+")
_WORD = re.compile(r"[^\W\d_][\w'-]{2,}")
_HOST = re.compile(r"https?://([\w-]+(?:\.[\w-]+)+)", re.IGNORECASE)
_TICKET = re.compile(r"\b[A-Z][A-Z0-9]{1,9}-\d{1,6}\b")
_CHINESE = re.compile(r"[\u4e00-\u9fff]{2,6}")
_STOP_WORDS = (
    "the and for with that this from are was were you your not has have had but can all new one two will what when "
    "file edit view window help tools search open close save untitled https http www com"
)
_STOP = frozenset(_STOP_WORDS.split())


@dataclass(frozen=True)
class Place:
    """The program and document that a person uses, from the window's title."""

    app: str
    document: str

    @property
    def name(self) -> str:
        """Document and program in one line; empty if both are unknown."""
        return clipped(" – ".join(unique([self.document, self.app])), MAX_TITLE)


def place_of(shot: Shot) -> Place:
    """Return the program and document of a frame, without marks for unsaved or unread."""
    title = _MARKS.sub("", " ".join(shot.window_title.split()))
    parts = [part for part in DASHES.split(title) if part]
    app = " ".join(shot.app_hint.split())
    if app:
        # The last part often has more of the program's name: `Inbox — Mozilla Firefox`.
        kept = [part for n, part in enumerate(parts, 1) if not _names(part, app, is_last=n == len(parts))]
    else:
        app = parts[-1] if len(parts) > 1 else ""
        kept = parts[:-1] if len(parts) > 1 else parts
    return Place(clipped(app, MAX_NAME), clipped(" – ".join(kept), MAX_TITLE))


def _names(part: str, app: str, *, is_last: bool) -> bool:
    words, of_app = (re.findall(r"\w+", text.casefold()) for text in (part, app))
    return part.casefold() == app.casefold() or (is_last and bool(of_app) and words[-len(of_app) :] == of_app)


@dataclass(frozen=True)
class ReadFrame:
    """A frame with its place, its title and its telling lines."""

    shot: Shot
    place: Place
    title: str
    """The window's title, or else a distinguishing line."""
    lines: Sequence[str]


def index_by_rules(
    screens: Mapping[int, Shot],
    texts: Mapping[int, str],
    history: HistoryPack,
    lines: Mapping[int, Sequence[SeenLine]] | None = None,
) -> VlmIndex:
    """Build an index of the same shape as the model's. `screens`: by screen id; `texts`: by our screenshot id;
    `lines`: the same texts with their lines' boxes.

    Each stay at a place becomes a segment; a stay at the place of a thread from the history continues the thread.
    """
    frames = _frames(screens, texts, lines or {})
    stays = _stays(frames)
    segments = [
        _segment([frames[screen] for screen in members], members, history, n) for n, members in enumerate(stays, 1)
    ]
    seen = [_seen(shot, texts.get(shot.id, "")) for _, shot in sorted(screens.items())]
    shown = [f"{shot.window_title}\n{texts.get(shot.id, '')}" for _, shot in sorted(screens.items())]
    return VlmIndex(segments=segments, entities=entities_in(shown), screenshots=seen)


def title_of(segment: Segment, screens: Mapping[int, Shot]) -> str:
    """Return the title of a segment, by which a thread with the same title may take it up; empty if program and window
    are unknown."""
    shown = [screens[screen] for screen in segment.screen_ids if screen in screens]
    return segment.event.title if shown and place_of(shown[0]).name else ""


def _frames(
    screens: Mapping[int, Shot], texts: Mapping[int, str], lines: Mapping[int, Sequence[SeenLine]]
) -> dict[int, ReadFrame]:
    read = {screen: lines.get(shot.id) or headings.lines_of(texts.get(shot.id, "")) for screen, shot in screens.items()}
    telling = headings.telling(read)
    frames = {}
    for screen, shot in sorted(screens.items()):
        place = place_of(shot)
        title = place.name
        if not place.document:
            bar = headings.window_title(read[screen])
            document = place_of(replace(shot, window_title=bar)).document if bar else ""
            document = document or headings.heading(telling[screen]) or headings.last_resort(read[screen])
            place = Place(place.app, document if place.app else "")
            title = place.name or (place_of(replace(shot, window_title=bar)).name if bar else document)
        frames[screen] = ReadFrame(
            shot, place, title or UNTITLED, [row.text for row in telling[screen] or read[screen]]
        )
    return frames


def _stays(frames: Mapping[int, ReadFrame]) -> list[list[int]]:
    """Group screens into runs at one place without a long pause. A clock that went back is not a pause."""
    stays: list[list[int]] = []
    last: ReadFrame | None = None
    for screen_id, frame in frames.items():
        # Two frames at unknown places may have nothing in common.
        stayed = last is not None and frame.place.name and frame.place == last.place
        if stayed and last is not None and frame.shot.ts_ms - last.shot.ts_ms <= GAP_MS:
            stays[-1].append(screen_id)
        else:
            stays.append([screen_id])
        last = frame
    return stays


def _segment(frames: Sequence[ReadFrame], members: Sequence[int], history: HistoryPack, number: int) -> Segment:
    place, title = frames[0].place, frames[0].title
    known = (seen.thread_id for seen in history.threads if place.name and seen.title.casefold() == title.casefold())
    thread = next(known, "")
    return Segment(
        segment_id=f"seg_{number}",
        screen_ids=list(members),
        event=SegmentEvent(
            title=title, summary=_summary(frames), importance=min(5, 1 + len(frames)), confidence=CONFIDENCE
        ),
        merge_hint=MergeHint(decision="MERGE", thread_id=thread) if thread else MergeHint(),
        keywords=keywords_in([place.document, *(line for frame in frames for line in frame.lines)]),
    )


def _summary(frames: Sequence[ReadFrame]) -> str:
    times = [frame.shot.ts_ms for frame in frames]
    span = " to ".join(dict.fromkeys(_clock(moment) for moment in (min(times), max(times))))
    count = "1 screenshot" if len(frames) == 1 else f"{len(frames)} screenshots"
    where = f" in {frames[0].place.app}" if frames[0].place.app else ""
    lines = unique(" ".join(line.split()) for frame in frames for line in frame.lines)
    seen = " · ".join(line for line in lines if len(line) > 3)
    head = f"{count}{where}, {span} UTC."
    return clipped(f"{head} Seen: {seen}" if seen else head, min(MAX_SUMMARY, 500))


def _clock(ts_ms: int) -> str:
    try:
        return datetime.fromtimestamp(ts_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "an unknown time"


def _seen(shot: Shot, text: str) -> SeenScreenshot:
    app = place_of(shot).app
    guess = AppGuess(name=app, confidence=1.0 if shot.app_hint.strip() else 0.5) if app else None
    snippets = unique(line.strip() for line in text.splitlines() if 2 < len(line.strip()) <= 60)[:MAX_SNIPPETS]
    return SeenScreenshot(
        screenshot_id=shot.id, ocr_text=clipped(text, MAX_OCR), ui_text_snippets=snippets, app_guess=guess
    )


def keywords_in(texts: Iterable[str]) -> list[str]:
    """Return the most frequent words, at most ten; of equally frequent words, the first."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(
            word for word in map(str.casefold, [*_WORD.findall(text), *_CHINESE.findall(text)]) if word not in _STOP
        )
    return [word for word, _ in words.most_common(MAX_KEYWORDS)]


def entities_in(texts: Iterable[str]) -> list[str]:
    """Return names of files, sites and tickets, which have recognisable forms. Names of people have none."""
    names = [name for text in texts for form in (FILE, _HOST, _TICKET) for name in form.findall(text)]
    return [clipped(name, MAX_NAME) for name in unique(names)][:MAX_SNIPPETS]
