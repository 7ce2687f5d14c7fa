"""Put regions of a page together: Markdown, and blocks with boxes."""

import math
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from pipeline.reading.export.hypertext import new_block, unescape
from pipeline.reading.replies import markup, tables
from pipeline.reading.replies.form import FURNITURE, MAX_REGIONS, Box, Form, Label, Parsed, Region
from pipeline.reading.replies.formulas import formula
from pipeline.reading.replies.tables import Table
from pipeline.reading.replies.wrapping import without_overrides

_HEADING = re.compile(r"(#{1,6})[ \t]++(\S.*+)")
_ITEM = re.compile(r"([ \t]*+)([-*+•·◦▪]|\d{1,4}[.)])[ \t]++(?=\S)")
_MARKS = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])|!?\[(?P<link>[^\[\]\n]*+)\]\([^()\s]*+\)|\*{1,3}|~~|`++|(?<!\w)__?(?=\S)|(?<=\S)__?(?!\w)"
    r"|</?(?:sub|sup|mark)>"
)
_FORMULA = re.compile(r"(\$\$[^$]++\$\$|\$[^$\n]++\$)")
_CJK = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")
_TOLERANCE = 0.02
"""How far, as a share of the page, a box may reach beyond the page: models round, and pages are padded."""


def scaled(form: Form, size: tuple[int, int], numbers: Sequence[float]) -> Box | None:
    """Return a model's four numbers in pixels of the picture sent; None if they are not four."""
    if len(numbers) != 4:
        return None
    if form.scale is None:
        left, top, right, bottom = map(float, numbers)
        return left, top, right, bottom
    across, down = size[0] / form.scale, size[1] / form.scale
    return numbers[0] * across, numbers[1] * down, numbers[2] * across, numbers[3] * down


def assemble(form: Form, regions: Sequence[Region], size: tuple[int, int], *, complete: bool = True) -> Parsed:
    """Return the page made of these regions, in this order. `size`: of the picture sent, in pixels."""
    page = _Page(form, size, complete=complete and len(regions) <= MAX_REGIONS)
    for region in regions[:MAX_REGIONS]:
        page.add(region)
    text = "\n\n".join(page.parts)
    return Parsed(
        text,
        blocks=page.blocks if any(region.box for region in regions) else [],
        complete=page.complete,
        regions=tuple(page.regions),
        unequal_tables=tables.count_unequal(page.tables, text),
        bad_boxes=page.bad_boxes,
    )


class _Page:
    def __init__(self, form: Form, size: tuple[int, int], *, complete: bool) -> None:
        self.complete = complete
        self.parts: list[str] = []
        self.blocks: list[dict[str, Any]] = []
        self.tables: list[Table] = []
        self.regions: list[Region] = []
        self.bad_boxes = 0
        self._form = form
        self._size = size
        self._continuable = False
        """Whether the last part is text that the next region may go on with."""
        self._in_list = False

    def add(self, region: Region) -> None:
        label = self._form.label(region.label)
        region = region._replace(text=without_overrides(region.text))  # those that JSON writes as escapes
        box = self._box(region.box)
        left, top, right, bottom = box or (0.0, 0.0, 0.0, 0.0)
        self.regions.append(region._replace(box=(left, top, right, bottom) if box else None))
        if label == "ignored" or (label in FURNITURE and self._form.furniture == "drop"):
            self._continuable = False
            return
        match label:
            case "table" if found := _table(region.text):
                self._break()
                for item in found:
                    self._table_or_text(item, box)
            case "formula":
                self._write(formula(region.text), [new_block("paragraph", formula(region.text))], box)
            case "code":
                self._code(region.text, box)
            case "picture":
                text = self._harmless(region.text)
                self._write(text, [new_block("picture", plain(text), link="")], box)
            case _:
                self._text(label, region, box)

    def _box(self, box: Box | None) -> list[float] | None:
        """Return a box clipped to the picture; None if it is bad."""
        if box is None:
            return None
        width, height = self._size
        known = all(map(math.isfinite, box))
        left, top, right, bottom = box if known else (0.0, 0.0, 0.0, 0.0)
        beyond = max(-left / width, -top / height, right / width - 1, bottom / height - 1)
        if not known or left >= right or top >= bottom or beyond > _TOLERANCE:
            self.bad_boxes += 1
            return None
        clipped = max(0.0, left), max(0.0, top), min(right, width), min(bottom, height)
        return [round(side, 1) for side in clipped]

    def _harmless(self, text: str) -> str:
        result = markup.harmless(text, furniture=self._form.furniture == "keep")
        self.complete = self.complete and result.complete
        self.tables += result.tables
        return result.text

    def _table_or_text(self, item: Table | str, box: list[float] | None) -> None:
        if isinstance(item, str):
            text = tables.literal(item)
            self._write(text, [new_block("paragraph", item)], box)
        else:
            self.tables.append(item)
            self._write(item.markdown(), [item.block()], box)

    def _code(self, text: str, box: list[float] | None) -> None:
        text = text.strip("\n")
        lines = text.split("\n")
        if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
            text = "\n".join(lines[1:-1])
        if text.strip():
            self._write(markup.fenced(text), [new_block("code", text)], box)

    def _text(self, label: Label, region: Region, box: list[float] | None) -> None:
        text = self._harmless(region.text)
        if not text:
            return
        if label in {"title", "heading"} and not text.startswith("#"):
            text = f"{'#' if label == 'title' else '##'} {' '.join(text.split())}"
        if label == "list":
            text = "\n".join(line if _ITEM.match(line) else f"- {line}" for line in text.split("\n") if line.strip())
        blocks = _blocks(text, "footnote" if label == "footnote" else "paragraph")
        in_list = all(block["type"] == "list_item" for block in blocks)
        if region.continues and self._continuable and self.parts:
            self.parts[-1] = _joined(self.parts[-1], text)
        elif in_list and self._in_list:
            self.parts[-1] += f"\n{text}"
        else:
            self.parts.append(text)
        self._place(blocks, box)
        self._continuable, self._in_list = True, in_list

    def _write(self, markdown: str, blocks: list[dict[str, Any]], box: list[float] | None) -> None:
        self._break()
        if markdown:
            self.parts.append(markdown)
        if markdown or blocks[0]["type"] == "picture":
            self._place(blocks, box)

    def _break(self) -> None:
        self._continuable = self._in_list = False

    def _place(self, blocks: list[dict[str, Any]], box: list[float] | None) -> None:
        for block in blocks:
            self.blocks.append({**block, "bbox": box})


def _table(text: str) -> list[Table | str]:
    """Return the tables in a region's text and the texts around them; empty without a table."""
    if tables.is_otsl(text):
        table = tables.from_otsl(text)
        return [table] if table else []
    if "<t" in text.lower():
        found = tables.from_html(text)
        return found if any(isinstance(item, Table) for item in found) else []
    table = tables.from_pipes(text)
    return [table] if table else []


def _joined(before: str, after: str) -> str:
    """Return text that goes on in another column or on another line."""
    if before.endswith("-") and before[-2:-1].isalpha() and after[:1].islower():
        return before[:-1] + after
    return before + ("" if _CJK.match(before[-1:]) and _CJK.match(after[:1]) else " ") + after


def _blocks(markdown: str, kind: str) -> list[dict[str, Any]]:
    """Return the blocks of a region of text: a heading, list items, tables, or else one paragraph."""
    result: list[dict[str, Any]] = []
    for part in markdown.split("\n\n"):
        lines = part.strip("\n").split("\n")
        heading = _HEADING.fullmatch(lines[0]) if len(lines) == 1 else None
        if heading:
            result.append(new_block("heading", plain(heading[2]), level=len(heading[1])))
        elif found := _table(part) if lines[0].startswith(("|", "<table>")) else []:
            result += [item.block() for item in found if isinstance(item, Table)]
        elif _ITEM.match(lines[0]):
            result += _items(lines)
        elif part.strip():
            result.append(new_block(kind, plain(part)))
    joined: list[dict[str, Any]] = []
    for is_text, run in groupby(result, key=lambda block: block["type"] == kind):
        same = list(run)
        joined += [new_block(kind, " ".join(block["text"] for block in same))] if is_text else same
    return joined


def _items(lines: Sequence[str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    texts: list[list[str]] = []
    for line in lines:
        item = _ITEM.match(line)
        if item:
            marker = item[2] if item[2][0].isdigit() else "-"
            depth = min(len(item[1].expandtabs(4)) // 2, 9)
            depth = min(depth, items[-1]["depth"] + 1 if items else 0)
            items.append(new_block("list_item", "", marker=marker, depth=depth))
            texts.append([])
            line = line[item.end() :]  # noqa: PLW2901
        texts[-1].append(plain(line))
    return [{**item, "text": " ".join(words)} for item, words in zip(items, texts, strict=True)]


def plain(markdown: str) -> str:
    """Return the text of a paragraph of harmless Markdown, with single spaces; formulas stay as they are."""
    parts = _FORMULA.split(markdown.replace("<br>", " "))
    parts[::2] = [
        unescape(_MARKS.sub(lambda match: match["escaped"] or match["link"] or "", part)) for part in parts[::2]
    ]
    return " ".join("".join(parts).split())


def _unmarked(match: re.Match[str]) -> str:
    return match["escaped"] or match["link"] or ""
