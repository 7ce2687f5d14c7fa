"""Convert pages to Markdown with their layout on inference nodes, from the pages' pictures.

A node's result is not trusted: its layout is copied field by field, and its pictures are re-encoded under names of our
own.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.engine.errors import UserError
from pipeline.engine.tables import storable
from pipeline.nodes.client import Attachment
from pipeline.nodes.protocol import Capability
from pipeline.providers import token_claim
from pipeline.providers.nodes import Nodes, TextResult
from pipeline.providers.protocols import MEDIA_TYPES, Answer, Call, PageReader, PageRef, Pass, RejectedAnswer, directly
from pipeline.providers.vision_pages import read_image
from pipeline.reading.files.filetype import MIME_TYPES, detect
from pipeline.reading.ocr.rendition import Rendition

MAX_PICTURE_PIXELS = 16_000_000
_MAX_BLOCKS, _MAX_CELLS = 20_000, 100_000
_MAX_GARBLED, _MAX_WORD_CHARS = 20, 200
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LINK = re.compile(r"\]\((?:pictures/)?([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})\)")
_KNOWN = {"heading", "paragraph", "list_item", "table", "code", "quote", "footnote", "furniture", "picture", "formula"}

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
    number: str = Field(default="", max_length=20)
    header: int = Field(default=0, ge=0, le=1000)
    rows: list[list[_Cell]] = Field(default_factory=list)

    def as_dict(self, page: int, links: Mapping[str, str]) -> dict[str, Any]:
        """Return the block in the shape of local conversion: only the fields of its type."""
        kind = self.type if self.type in _KNOWN and (self.type != "table" or self.rows) else "paragraph"
        more: dict[str, Any] = {}
        match kind:
            case "heading":
                more = {"level": self.level}
            case "list_item":
                more = {"marker": storable(self.marker), "depth": self.depth}
            case "picture" | "formula":
                more = {"link": links.get(self.link.removeprefix("pictures/"), "")}
                more |= {"number": storable(self.number)} if kind == "formula" else {}
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
        """Return the `Answer.layout` of this page; `links`: names of pictures → their saved links."""
        blocks = [block.as_dict(page, links) for block in self.blocks]
        garbled = [storable(word) for word in self.garbled] or None
        facts = {"confidence": self.confidence, "uncertain": self.uncertain, "garbled": garbled}
        sure = {name: fact for name, fact in facts.items() if fact is not None}
        return {"width": self.width, "height": self.height, "unit": self.unit, "blocks": blocks, **sure}

    @property
    def cells(self) -> int:
        """The number of grid places of all tables together."""
        return sum(cell.rows * cell.columns for block in self.blocks for row in block.rows for cell in row)


class _PageResult(TextResult):
    layout: _Layout | None = None


class NodePages:
    """A `PageConverter` that sends each page's picture to a node."""

    needs_images = True
    paid = True
    falls_back = False

    def __init__(self, nodes: Nodes) -> None:
        self.name = nodes.name
        self.model = nodes.model
        self.rendition = Rendition(nodes.profile.image_dpi)
        self._reader = _NodeReader(nodes)
        self._facts = json.dumps([self.name, nodes.profile.base_url, self.model, str(Capability.PAGE)]).encode()

    def survey(self, source: Path, pages: Sequence[int], tick: Callable[[], object]) -> str:  # noqa: ARG002
        """Return an empty profile: a node sees one page at a time."""
        return ""

    def open(self, source: Path, survey: str = "") -> AbstractContextManager[PageReader]:  # noqa: ARG002 (pictures suffice)
        """Return a reader. It does not open `source`: the pictures of the pages show everything."""
        return nullcontext(self._reader)

    def cache_key(self, page: PageRef) -> tuple[str, str]:
        """Return (key, prompt hash), hex. Raises `UnitError` if the picture is missing, cannot be read, or is not PNG,
        JPEG or WebP.

        With pictures to cut out, the key is specific to their folder, since the Markdown links to files there.
        """
        image, _ = read_image(page)
        facts = self._facts + (f"\n{page.number}\n{page.pictures}".encode() if page.pictures else b"")
        return hashlib.sha256(hashlib.sha256(image).digest() + facts).hexdigest(), hashlib.sha256().hexdigest()


class _NodeReader:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def convert(self, page: PageRef) -> Answer:
        """Return the Markdown of one page, with its layout if the node provides it; save its pictures if `page` names a
        folder. Raises `UnitError`, also for an incomplete answer."""
        (done,) = self.passes(page, directly)
        if done.error:
            raise done.error
        return done.answer

    def passes(self, page: PageRef, call: Call) -> Iterator[Pass]:
        """Yield the page, with an error if its answer is incomplete. Raises `UnitError`."""
        answer = call("", lambda: self._asked(page))
        if not answer.truncated:
            yield Pass(answer)
            return
        message = (
            f"the answer of provider '{self._nodes.name}' for page {page.number} stops at its node's limit of tokens"
        )
        yield Pass(answer, RejectedAnswer(message, answer))

    def _asked(self, page: PageRef) -> Answer:
        image, media_type = read_image(page)
        body = {"number": page.number, "pictures": page.pictures is not None}
        reply = self._nodes.ask(Capability.PAGE, body, [(Attachment(media_type=media_type, size=len(image)), image)])
        result = self._nodes.read(_PageResult, reply)
        if result.layout is not None and result.layout.cells > _MAX_CELLS:
            raise self._nodes.bad_reply(f"gave tables of {result.layout.cells} cells")
        links = self._saved(page, page.pictures, reply.attachments) if page.pictures is not None else {}
        text = _LINK.sub(lambda link: f"]({links[link[1]]})" if link[1] in links else link[0], storable(result.text))
        layout = result.layout.as_dict(page.number, links) if result.layout is not None else None
        most = token_claim.most_input((), 1), token_claim.most_output(text, self._nodes.profile.max_tokens)
        usage = self._nodes.usage_of(result, *most)
        kept = {"text": text, "layout": layout} if layout is not None else None
        return Answer(text, self._nodes.model_of(result), usage, reply.latency_ms, result.truncated, layout, reply=kept)

    def _saved(self, page: PageRef, folder: Path, attachments: Sequence[tuple[Attachment, bytes]]) -> dict[str, str]:
        """Save the pictures, each re-encoded, and return the link of each by the node's name for it."""
        from pipeline.reading.pdf import inspection  # noqa: PLC0415  # import Pillow only when needed

        links: dict[str, str] = {}
        for place, (about, data) in enumerate(attachments, 1):
            detected = detect(data)
            kind = MIME_TYPES.get(detected or "")
            if not _FILE_NAME.fullmatch(about.name) or about.name in links:
                raise self._nodes.bad_reply("gave a picture without a plain file name of its own")
            if detected is None or kind not in MEDIA_TYPES or about.media_type != kind:
                raise self._nodes.bad_reply("gave a picture that is not PNG, JPEG or WebP as declared")
            name = f"page-{page.number:04d}-{place}.png"
            with tempfile.NamedTemporaryFile() as received:
                received.write(data)
                received.flush()
                try:
                    inspection.render(
                        Path(received.name), "the picture", detected, 1, folder / name, 0, MAX_PICTURE_PIXELS
                    )
                except UserError as error:
                    raise self._nodes.bad_reply(f"gave a picture that cannot be used ({error.code})") from None
            links[about.name] = f"{folder.name}/{name}"
        return links
