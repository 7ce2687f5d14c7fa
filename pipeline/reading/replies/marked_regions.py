"""Replies that put a mark with label and box before each region's text: DeepSeek-OCR, MinerU's layout, LightOnOCR-3."""

import re
from collections.abc import Sequence
from itertools import zip_longest

from pipeline.reading.replies.assembly import assemble, scaled
from pipeline.reading.replies.form import LABELS, Form, Parsed, Region

_REF = re.compile(
    r"<\|ref\|>(?P<label>[^<]*+)<\|/ref\|>\s*+<\|det\|>(?P<boxes>[^<]*+)<\|/det\|>"
    r"|^(?P<bare>[a-z_]{1,40}+)(?P<bare_boxes>\[\[[0-9., ]++\]\])[ \t]*+$",  # a server that leaves out special tokens
    re.MULTILINE,
)
_REF_REST = re.compile(r"<\|/?(?:ref|det|grounding)\|>(?:[0-9.,\s]*+\[++[0-9.,\s\[\]]*+)?+")
_LAYOUT = re.compile(
    r"<\|box_start\|>(?P<box>[^<]*+)<\|box_end\|><\|ref_start\|>(?P<label>[^<]*+)<\|ref_end\|>"
    r"(?:<\|rotate_(?P<side>up|right|down|left)\|>)?+(?P<more>[^<\n]*+(?:<\|txt_contd[^<>]*+>)?+)"
)
_TURNS = {None: 0, "up": 0, "right": 90, "down": 180, "left": 270}
_CONTAINERS = frozenset({"list", "equation_block", "image_block", "inline_formula"})
"""MinerU's regions whose parts are regions, too."""
_BOXED = re.compile(r"!\[(?P<label>[A-Za-z_][\w-]*+)(?P<more>\+?)\]\((?P<box>[-0-9., \t]{7,60}+)\)")
_BOXED_REST = re.compile(r"!\[[A-Za-z_][\w-]*+\+?\]?(?:\([-0-9., \t]*+)?+\Z")
_NUMBER = re.compile(r"-?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?+|nan|inf)", re.IGNORECASE)
_LIST = re.compile(r"\[([^\[\]]*+)\]")


def numbers(text: str) -> list[float]:
    """Return the numbers in a text."""
    return [float(number) for number in _NUMBER.findall(text[:400])]


def read_ref_det(form: Form, text: str, size: tuple[int, int]) -> Parsed:
    """Return the page of `<|ref|>label<|/ref|><|det|>[[x1,y1,x2,y2]]<|/det|>` marks. Text in the place of a label that
    nothing follows is a line with its box: so the prompt "OCR this image" is answered."""
    marks = list(_REF.finditer(text))
    complete = bool(marks) or not text
    regions: list[Region] = []
    for label, body, mark in _texts(text, marks):
        words = _REF_REST.sub("", body).strip()
        complete = complete and words == body
        if mark is None:
            regions += [Region("text", words)] * bool(words)
            continue
        boxes = [numbers(box) for box in _LIST.findall(mark["boxes"] or mark["bare_boxes"])]
        sides = list(zip(*[box for box in boxes if len(box) == 4], strict=True))
        complete = complete and bool(sides)
        box = scaled(form, size, [*map(min, sides[:2]), *map(max, sides[2:])])
        is_line = not words and mark["label"] and label.lower() not in {*LABELS, *form.labels, "text", "paragraph"}
        regions.append(Region("text", label, box) if is_line else Region(label, words, box))
    return assemble(form, regions, size, complete=complete)


def read_layout_tokens(form: Form, text: str, size: tuple[int, int]) -> Parsed:
    """Return the regions of MinerU's first step, without texts: `assemble` them once the second step has read each."""
    regions = []
    end = 0
    complete = True
    for mark in _LAYOUT.finditer(text):
        complete = complete and not text[end : mark.start()].strip()
        end = mark.end()
        label = mark["label"].strip().lower()
        if label not in _CONTAINERS:
            label = "image" if label == "unknown" else label
            box = scaled(form, size, numbers(mark["box"]))
            complete = complete and box is not None
            regions.append(Region(label, "", box, _TURNS[mark["side"]], "txt_contd_tgt" in mark["more"]))
    complete = complete and not text[end:].strip()
    return assemble(form, regions, size, complete=complete)


def read_md_boxes(form: Form, text: str, size: tuple[int, int]) -> Parsed:
    """Return the page of `![label](x1,y1,x2,y2)` marks, each before its text."""
    rest = _BOXED_REST.search(text[-120:])
    cut = text[: len(text) - len(rest[0])] if rest else text
    marks = list(_BOXED.finditer(cut))
    complete = (bool(marks) and rest is None) or not text
    regions = []
    for label, body, mark in _texts(cut, marks):
        if mark is None:
            regions += [Region("text", body)] * bool(body)
            continue
        box = scaled(form, size, numbers(mark["box"]))
        complete = complete and box is not None
        regions.append(Region(label, body, box, continues=bool(mark["more"])))
    return assemble(form, regions, size, complete=complete)


def _texts(text: str, marks: Sequence[re.Match[str]]) -> list[tuple[str, str, re.Match[str] | None]]:
    """Return (label, text up to the next mark, mark) of each mark, and before them the text that no mark precedes."""
    found: list[tuple[str, str, re.Match[str] | None]] = []
    first = text[: marks[0].start()].strip() if marks else text.strip()
    if first:
        found.append(("", first, None))
    for mark, following in zip_longest(marks, marks[1:]):
        end = following.start() if following else len(text)
        label = mark["label"] or mark.groupdict().get("bare") or ""
        found.append((label.strip(), text[mark.end() : end].strip(), mark))
    return found
