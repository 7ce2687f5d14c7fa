from pipeline.reading.layout.model import (
    Cell,
    Code,
    Footnote,
    Furniture,
    Heading,
    ListItem,
    Paragraph,
    Picture,
    Quote,
    Run,
    Table,
)
from pipeline.reading.layout.page import as_dicts, render
from pipeline.reading.layout.sections import sections

BOX = (0.0, 0.0, 10.0, 10.0)


def runs(text: str) -> tuple[Run, ...]:
    return (Run(text),)


BLOCKS = [
    Furniture(BOX, runs("running head")),
    Heading(BOX, runs("Title"), 1),
    Paragraph(BOX, runs("# not a heading")),
    Picture(BOX),
    Picture(BOX, "pictures/page-0001-1.png"),
    ListItem(BOX, runs("first"), "-"),
    ListItem(BOX, runs("inner"), "1.", 1),
    Quote(BOX, runs("said")),
    Code(BOX, "def f():\n\n    ```\n| no table"),
    Table(BOX, ((Cell(runs("a")), Cell(runs("b"))), (Cell(runs("1")), Cell(runs("2"))))),
    Table(BOX, ((Cell(runs("a"), columns=2),), (Cell(runs("1")), Cell(runs("2"))))),
    Paragraph(BOX, ()),
    Footnote(BOX, runs("note")),
    Furniture(BOX, runs("17")),
]


def test_each_block_has_its_part_of_the_markdown() -> None:
    parts = sections(render(BLOCKS), as_dicts(BLOCKS, 1))
    assert parts is not None
    assert parts.pop(0) == parts.pop() == "", "furniture is not in the Markdown"
    assert parts[:7] == [
        "# Title",
        "\\# not a heading",
        "",
        "![](pictures/page-0001-1.png)",
        "- first",
        "    1. inner",
        "> said",
    ]
    assert parts[7].startswith("````\n")
    assert parts[7].endswith("\n````")
    assert parts[8] == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert parts[9].startswith("<table>")
    assert parts[9].endswith("</table>")
    assert parts[10:] == ["", "note"]


def test_other_markdown_is_not_taken_apart() -> None:
    markdown, blocks = render(BLOCKS), as_dicts(BLOCKS, 1)
    assert sections(f"{markdown}\n\nmore", blocks) is None
    assert sections(markdown[: len(markdown) // 2], blocks) is None
    assert sections("text", blocks) is None
    assert sections(markdown, blocks[2:]) is None
    assert sections("```\nnever closed", [{"type": "code", "text": "never closed"}]) is None
    assert sections("", []) == []
