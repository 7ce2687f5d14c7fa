"""Chunks of a DoclingDocument, in docling-serve's shape.

The hierarchical chunker makes a chunk of each paragraph, list and table; the hybrid chunker joins neighbours below the
same headings, and splits what exceeds its tokens. Pictures have no chunks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pipeline.interfaces.compatibility.docling.task import Chunking
from pipeline.reading.export import markup
from pipeline.reading.export.docling import Part
from pipeline.reading.text.chunks import count_tokens, split
from pipeline.reading.text.sections import SEPARATOR, Reading, Section

Json = Mapping[str, Any]


@dataclass(frozen=True)
class _Unit:
    """A text with the headings above it, the outermost first, the `$ref`s of its items, and its pages."""

    text: str
    headings: tuple[str, ...]
    refs: tuple[str, ...]
    pages: frozenset[int]


def chunks(parts: Iterable[Part], origin: Json, chunking: Chunking, filename: str) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a document, whose `origin` is that of its DoclingDocument. `num_tokens` counts as the chunks
    of knowledge bases do, whatever tokenizer the client names; only the hybrid chunker counts."""
    units = _units(parts, markdown_tables=chunking.markdown_tables)
    is_hybrid = chunking.chunker == "hybrid"
    for number, unit in enumerate(_joined(units, chunking) if is_hybrid else units):
        text = "\n".join([*unit.headings, unit.text])
        yield {
            "filename": filename,
            "chunk_index": number,
            "text": text,
            "raw_text": unit.text if chunking.raw_text else None,
            "num_tokens": count_tokens(text) if is_hybrid else None,
            "headings": list(unit.headings) or None,
            "captions": None,
            "doc_items": list(unit.refs),
            "page_numbers": sorted(unit.pages),
            "metadata": {"origin": origin},
        }


def _units(parts: Iterable[Part], *, markdown_tables: bool) -> Iterator[_Unit]:
    """Yield paragraphs, whole lists and tables, in reading order; a heading only if no text follows below it."""
    path: list[tuple[int, str]] = []
    bare: _Unit | None = None
    for part in parts:
        item = part.items[part.refs[0]]
        if item["label"] in {"title", "section_header"}:
            level = item.get("level", 0)
            if bare and path[-1][0] >= level:
                yield bare
            path = [above for above in path if above[0] < level]
            bare = _unit(part, item["text"], path)
            path.append((level, item["text"]))
        elif item["label"] == "table":
            bare = None
            yield _unit(part, _table(item["data"], markdown=markdown_tables), path)
        elif text := markup.part_text(part).strip():
            bare = None
            yield _unit(part, text, path)
    if bare:
        yield bare


def _unit(part: Part, text: str, path: list[tuple[int, str]]) -> _Unit:
    leaves = [item for item in part.items.values() if "prov" in item and item["content_layer"] == "body"]
    pages = frozenset(prov["page_no"] for leaf in leaves for prov in leaf["prov"])
    return _Unit(text, tuple(name for _, name in path), tuple(leaf["self_ref"] for leaf in leaves), pages)


def _joined(units: Iterator[_Unit], chunking: Chunking) -> Iterator[_Unit]:
    """Yield units of at most `max_tokens` with their headings; headings may take half of them."""
    numbered = enumerate(units)
    for (headings, _), run in groupby(numbered, lambda each: (each[1].headings, each[0] * chunking.separate)):
        parts = [unit for _, unit in run]
        room = chunking.max_tokens - (count_tokens("\n".join([*headings, ""])) if headings else 0)
        whole = SEPARATOR.join(unit.text for unit in parts)
        starts = [0]
        for unit in parts:
            starts.append(starts[-1] + len(unit.text) + len(SEPARATOR))
        section = Section(whole, plain=True)
        for chunk in split(Reading("", [section]), max(room, chunking.max_tokens // 2), 0):
            among = parts[bisect_right(starts, chunk.start) - 1 : bisect_left(starts, chunk.end)]
            refs = tuple(ref for unit in among for ref in unit.refs)
            yield _Unit(chunk.text, headings, refs, frozenset().union(*(unit.pages for unit in among)))


def _table(data: Json, *, markdown: bool) -> str:
    """Return a table as Markdown, or as Docling's triplets: `row, column = value`; without any, its words."""
    rows = [[" ".join(cell["text"].split()) for cell in row] for row in data["grid"]]
    if markdown:
        lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows]
        return "\n".join([*lines[:1], "|" + " --- |" * data["num_cols"], *lines[1:]])
    triplets = [
        f"{row[0]}, {name} = {text}" for row in rows[1:] for name, text in zip(rows[0][1:], row[1:], strict=True)
    ]
    return ". ".join(triplets or [text for row in rows for text in row if text])
