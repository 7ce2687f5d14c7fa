"""The shapes in which models reply, and the parts of a parsed reply."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "markdown",
    "front_matter",
    "ref_det",
    "json_blocks",
    "layout_tokens",
    "doctags",
    "otsl",
    "md_boxes",
    "html_blocks",
]
"""The documented shapes: plain Markdown; Markdown below YAML (olmOCR); `<|ref|>` and `<|det|>` (DeepSeek-OCR); a list
of JSON objects (dots.ocr, Infinity-Parser2); `<|box_start|>` (MinerU's layout step); DocTags (Granite-Docling); a table
in OTSL (PaddleOCR-VL, MinerU); `![label](x1,y1,x2,y2)` (LightOnOCR-3); HTML with `data-bbox` (Chandra, Qwen3-VL)."""

Label = Literal[
    "title",
    "heading",
    "text",
    "list",
    "table",
    "formula",
    "code",
    "picture",
    "caption",
    "footnote",
    "aside",
    "header",
    "footer",
    "page_number",
    "ignored",
]
"""Our names for the parts of a page. `ignored`: a part whose text does not stand on the page."""

FURNITURE: frozenset[Label] = frozenset({"header", "footer", "page_number"})

LABELS: Mapping[str, Label] = {
    "abandon": "ignored",
    "algorithm": "code",
    "aside_text": "aside",
    "caption": "caption",
    "chart": "picture",
    "checkbox_selected": "text",
    "checkbox_unselected": "text",
    "code": "code",
    "code_block": "code",
    "code_caption": "caption",
    "diagram": "picture",
    "display_formula": "formula",
    "doc_title": "title",
    "document_index": "table",
    "otsl": "table",
    "equation": "formula",
    "figure": "picture",
    "figure_caption": "caption",
    "figure_footnote": "footnote",
    "figure_title": "caption",
    "footer": "footer",
    "footer_image": "ignored",
    "footnote": "footnote",
    "formula": "formula",
    "formula_caption": "caption",
    "header": "header",
    "header_image": "ignored",
    "image": "picture",
    "image_caption": "caption",
    "image_footnote": "footnote",
    "list": "list",
    "list_group": "list",
    "list_item": "list",
    "number": "page_number",
    "page_footer": "footer",
    "page_footnote": "footnote",
    "page_header": "header",
    "page_number": "page_number",
    "paragraph_title": "heading",
    "picture": "picture",
    "section": "heading",
    "section_header": "heading",
    "section_title": "heading",
    "sub_title": "heading",
    "table": "table",
    "table_caption": "caption",
    "table_footnote": "footnote",
    "title": "title",
}
"""The labels of all these models, in lower case and with `_` for `-` and spaces. Any other label means text."""

MAX_CHARACTERS = 200_000
"""The longest reply to parse; the rest is cut off, and the reply counts as incomplete. A dense page has 20,000."""
PARSING_S = 60.0
"""How long a page's replies may be parsed after its last call: waiting for a child, and a starved child, included."""
MAX_REGIONS = 2_000
"""The most regions of a page."""


@dataclass(frozen=True)
class Form:
    """The shape of a model's replies.

    `scale`: the width and height of the page in the model's coordinates; None: it counts the pixels of the picture
    sent. `labels`: labels that mean something else than in `LABELS`, in lower case with `_`. `furniture`: whether the
    Markdown keeps running heads, footers and page numbers that the model marks as such."""

    kind: Kind = "markdown"
    scale: int | None = 1000
    labels: Mapping[str, Label] = field(default_factory=dict)
    furniture: Literal["keep", "drop"] = "keep"

    def label(self, name: str) -> Label:
        """Return our name for a model's label."""
        name = name.strip().lower().replace("-", "_").replace(" ", "_")
        return self.labels.get(name) or LABELS.get(name, "text")


Box = tuple[float, float, float, float]
"""Left, top, right and bottom, from the top left corner."""


class Region(NamedTuple):
    """A part of the page as the model gives it: its `label`, its `text` (Markdown, HTML, OTSL or LaTeX), and its `box`
    in pixels of the picture sent. `turn`: the degrees counter-clockwise that set it upright. `continues`: it goes on
    from the region before."""

    label: str
    text: str
    box: Box | None = None
    turn: int = 0
    continues: bool = False


@dataclass(frozen=True)
class Parsed:
    """A parsed reply.

    `text`: harmless Markdown. `blocks`: the page's blocks as in `Answer.layout`, with `bbox` in pixels of the picture
    sent; empty if the model gives no boxes. `rotation`: the degrees counter-clockwise by which to turn the picture (0,
    90, 180, 270). `complete`: the expected structure is whole. `regions`: the parts that the model names, for the
    second step of models with two. `unequal_tables`: tables whose rows differ in length, spans included.
    `bad_boxes`: boxes outside the picture, inverted or empty. `only_thoughts`: thoughts without an answer. `blank`: the
    model says that the page is empty."""

    text: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    rotation: int = 0
    complete: bool = True
    regions: tuple[Region, ...] = ()
    unequal_tables: int = 0
    bad_boxes: int = 0
    only_thoughts: bool = False
    blank: bool = False
