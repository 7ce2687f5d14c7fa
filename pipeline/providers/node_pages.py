"""Pages as Markdown with their layout, converted by inference nodes from the pages' pictures.

Whatever a node sends is a stranger's: its layout is taken field by field, and its pictures are drawn anew under names
of our own.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.engine.errors import UserError
from pipeline.engine.tables import storable
from pipeline.nodes.client import Attachment
from pipeline.nodes.protocol import Capability
from pipeline.providers import token_claim
from pipeline.providers.nodes import MadeText, Nodes
from pipeline.providers.protocols import MEDIA_TYPES, Answer, PageReader, PageRef
from pipeline.providers.vision_pages import TruncatedAnswer, read_image
from pipeline.reading.files.filetype import MIME_TYPES, detect

MAX_PICTURE_PIXELS = 16_000_000
_MAX_BLOCKS, _MAX_CELLS = 20_000, 100_000
_MAX_GARBLED, _MAX_WORD_CHARS = 20, 200
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LINK = re.compile(r"\]\((?:pictures/)?([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})\)")
_KNOWN = {"heading", "paragraph", "list_item", "table", "code", "quote", "footnote", "picture"}

Length = Annotated[float, Field(ge=-1e7, le=1e7, allow_inf_nan=False)]
Size = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
Span = Annotated[int, Field(ge=1, le=1000)]


class _Cell(BaseModel):
    model_config = ConfigDict(strict=True)
    text: str
    rows: Span = 1
    columns: Span = 1


class _Block(BaseModel):
    model_config = ConfigDict(strict=True)
    type: str
    text: str
    bbox: Annotated[list[Length], Field(min_length=4, max_length=4)]
    level: int = Field(default=1, ge=1, le=6)
    marker: str = Field(default="-", max_length=20)
    depth: int = Field(default=0, ge=0, le=50)
    link: str = ""
    header: int = Field(default=0, ge=0, le=1000)
    rows: list[list[_Cell]] = Field(default_factory=list)

    def as_dict(self, page: int, links: Mapping[str, str]) -> dict[str, Any]:
        """The block as those of local conversion are: what its type has, and nothing else."""
        kind = self.type if self.type in _KNOWN and (self.type != "table" or self.rows) else "paragraph"
        more: dict[str, Any] = {}
        match kind:
            case "heading":
                more = {"level": self.level}
            case "list_item":
                more = {"marker": storable(self.marker), "depth": self.depth}
            case "picture":
                more = {"link": links.get(self.link.removeprefix("pictures/"), "")}
            case "table":
                cells = [[cell.model_dump() | {"text": storable(cell.text)} for cell in row] for row in self.rows]
                more = {"header": min(self.header, len(cells)), "rows": cells}
        return {"page": page, "type": kind, "text": storable(self.text), "bbox": self.bbox, **more}


class _Layout(BaseModel):
    model_config = ConfigDict(strict=True)
    width: Size
    height: Size
    unit: Literal["pt", "px"] = "px"
    blocks: list[_Block] = Field(max_length=_MAX_BLOCKS)
    confidence: float | None = Field(default=None, ge=0, le=1)
    uncertain: float | None = Field(default=None, ge=0, le=1)
    garbled: list[Annotated[str, Field(max_length=_MAX_WORD_CHARS)]] = Field(default=[], max_length=_MAX_GARBLED)

    def as_dict(self, page: int, links: Mapping[str, str]) -> dict[str, Any]:
        """`Answer.layout` of this page; `links`: what the names of pictures became."""
        blocks = [block.as_dict(page, links) for block in self.blocks]
        garbled = [storable(word) for word in self.garbled] or None
        facts = {"confidence": self.confidence, "uncertain": self.uncertain, "garbled": garbled}
        sure = {name: fact for name, fact in facts.items() if fact is not None}
        return {"width": self.width, "height": self.height, "unit": self.unit, "blocks": blocks, **sure}

    @property
    def cells(self) -> int:
        """How many places all tables have together."""
        return sum(cell.rows * cell.columns for block in self.blocks for row in block.rows for cell in row)


class _MadePage(MadeText):
    layout: _Layout | None = None


class NodePages:
    """A `PageConverter`: nodes get each page's picture."""

    needs_images = True
    paid = True

    def __init__(self, nodes: Nodes) -> None:
        self.name = nodes.name
        self.model = nodes.model
        self._reader = _NodeReader(nodes)
        self._facts = json.dumps([self.name, nodes.profile.base_url, self.model, str(Capability.PAGE)]).encode()

    def survey(self, source: Path, pages: Sequence[int], tick: Callable[[], object]) -> str:  # noqa: ARG002
        """Nothing: a node sees one page at a time."""
        return ""

    def open(self, source: Path, survey: str = "") -> AbstractContextManager[PageReader]:  # noqa: ARG002 (pictures suffice)
        """A reader. It does not open `source`: the pictures of the pages show everything."""
        return nullcontext(self._reader)

    def cache_key(self, page: PageRef) -> tuple[str, str]:
        """(key, prompt hash), hex. Raises `UnitError` when the picture cannot be read.

        With pictures to be cut out it holds for their folder alone, since the Markdown shows the files there."""
        image, _ = read_image(page)
        facts = self._facts + (f"\n{page.number}\n{page.pictures}".encode() if page.pictures else b"")
        return hashlib.sha256(hashlib.sha256(image).digest() + facts).hexdigest(), hashlib.sha256().hexdigest()


class _NodeReader:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def convert(self, page: PageRef) -> Answer:
        """Markdown of one page, with its layout if the node knows it. Raises `UnitError`."""
        image, media_type = read_image(page)
        body = {"number": page.number, "pictures": page.pictures is not None}
        reply = self._nodes.ask(Capability.PAGE, body, [(Attachment(media_type=media_type, size=len(image)), image)])
        made = self._nodes.read(_MadePage, reply)
        if made.layout is not None and made.layout.cells > _MAX_CELLS:
            raise self._nodes.bad_reply(f"gave tables of {made.layout.cells} cells")
        links = self._saved(page, page.pictures, reply.attachments) if page.pictures is not None else {}
        text = _LINK.sub(lambda link: f"]({links[link[1]]})" if link[1] in links else link[0], storable(made.text))
        layout = made.layout.as_dict(page.number, links) if made.layout is not None else None
        most = token_claim.most_asked((), 1), token_claim.most_answered(text, self._nodes.profile.max_tokens)
        usage = self._nodes.usage_of(made, *most)
        answer = Answer(text, self._nodes.model_of(made), usage, reply.latency_ms, made.truncated, layout)
        if made.truncated:
            name = self._nodes.name
            message = f"the answer of provider '{name}' for page {page.number} stops at its node's limit of tokens"
            raise TruncatedAnswer(message, answer)
        return answer

    def _saved(self, page: PageRef, folder: Path, attachments: Sequence[tuple[Attachment, bytes]]) -> dict[str, str]:
        """Write the pictures, each drawn anew, and return the link of each by the name that the node gave it."""
        from pipeline.reading.pdf import inspection  # noqa: PLC0415  # Pillow waits until it is needed

        links: dict[str, str] = {}
        for place, (about, data) in enumerate(attachments, 1):
            found = detect(data)
            kind = MIME_TYPES.get(found or "")
            if not _FILE_NAME.fullmatch(about.name) or about.name in links:
                raise self._nodes.bad_reply("gave a picture without a plain file name of its own")
            if found is None or kind not in MEDIA_TYPES or about.media_type != kind:
                raise self._nodes.bad_reply("gave a picture that is not the PNG, JPEG or WebP that it should be")
            name = f"page-{page.number:04d}-{place}.png"
            with tempfile.NamedTemporaryFile() as received:
                received.write(data)
                received.flush()
                try:
                    inspection.render(
                        Path(received.name), "the picture", found, 1, folder / name, 0, MAX_PICTURE_PIXELS
                    )
                except UserError as error:
                    raise self._nodes.bad_reply(f"gave a picture that cannot be used ({error.code})") from None
            links[about.name] = f"{folder.name}/{name}"
        return links
