"""Tools that search knowledge bases, and add to them."""

from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from pydantic import BaseModel, Field, StringConstraints, model_validator

from pipeline.flows.knowledge.intake import Added as AddedItems
from pipeline.flows.knowledge.intake import Source
from pipeline.flows.knowledge.queries import UnknownBase
from pipeline.flows.knowledge.states import ItemType
from pipeline.flows.knowledge.views import BaseView, Hit, ShownItem, shown_item
from pipeline.interfaces.http.fields import CLEAN_LINES, Line, Name, Url
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.mcp.tool import Arguments, Call, Toolbox
from pipeline.interfaces.mcp.tools.documents import next_of_item, settled_item
from pipeline.interfaces.mcp.tools.progress import WaitS
from pipeline.operations import knowledge
from pipeline.operations.refusal import Refused

BOX = Toolbox()
Text = Annotated[str, StringConstraints(min_length=1, max_length=4000), CLEAN_LINES]


class Question(Arguments):
    """The words to search, and where."""

    query: Text = Field(description="A question or words.")
    bases: Annotated[list[Name], Field(max_length=50)] | None = Field(
        default=None, description="Names or ids of knowledge bases; null: all."
    )
    limit: int = Field(default=8, ge=1, le=30)
    since: At | None = Field(default=None, description="Only items added since then.")
    around: int = Field(default=0, ge=0, le=2, description="Chunks to show before and after each hit.")


class Passages(BaseModel):
    """Hits, best first: the wire format of `Hits` in tools."""

    hits: list[Hit]
    lexical: bool
    note: str


@BOX.tool("Search knowledge bases", spends=True)
def search_knowledge(call: Call, arguments: Question) -> Passages:
    """Find passages in knowledge bases that answer a question, best first, by words and by meaning."""
    result = knowledge.search.by(
        call.caller,
        None if arguments.bases is None else [_base(name).id for name in arguments.bases],
        arguments.query,
        limit=arguments.limit,
        since=arguments.since,
        around=arguments.around,
    )
    return Passages(**vars(result))


def _base(name: str) -> BaseView:
    """A base by its name or id. Raises `Refused` with the names of the bases."""
    try:
        return knowledge.base(name)
    except UnknownBase:
        names = [base.name for base in knowledge.bases() if not base.deleting]
        bases = f"the bases are {', '.join(names[:30])}" if names else "`penstock kb create` makes the first one"
        raise Refused(f"unknown knowledge base {name}; {bases}", code="unknown_base") from None


class Addition(Arguments):
    """The source to add, and its base."""

    base: Name = Field(description="The name or id of a knowledge base.")
    kind: Literal["note", "url", "sitemap"]
    text: Annotated[str, StringConstraints(max_length=1_000_000), CLEAN_LINES] = Field(
        default="", description="A note's text, in Markdown."
    )
    url: Url | None = Field(default=None, description="The address of a web page or a sitemap.")
    name: Line = Field(default="", description="The item's name.")
    wait_s: WaitS = 20

    @model_validator(mode="before")
    @classmethod
    def _no_path(cls, values: Any) -> Any:
        if isinstance(values, dict) and "path" in values:
            raise ValueError("this tool takes no path: convert a document, or add its text as a note")
        return values

    @model_validator(mode="after")
    def _whole(self) -> "Addition":
        if self.kind == "note" and (not self.text.strip() or self.url):
            raise ValueError("a note needs text, and no url")
        if self.kind != "note" and (not self.url or self.text):
            raise ValueError(f"a {self.kind} needs a url, and no text")
        return self


class Added(BaseModel):
    """The item added."""

    item: ShownItem
    warnings: list[str]
    next: str = Field(description="The next step.")


@BOX.tool("Add to a knowledge base", writes=True, spends=True, open_world=True)
async def add_to_knowledge(call: Call, arguments: Addition) -> Added:
    """Add a note, a web page or all pages of a sitemap to a knowledge base, and wait for it up to wait_s seconds."""

    def add() -> AddedItems:
        source = Source(ItemType(arguments.kind), text=arguments.text, url=arguments.url or "", name=arguments.name)
        return knowledge.add.by(call.caller, _base(arguments.base).id, [source])

    added = await run_sync(add)
    if not added.created:
        first = added.failed[0]
        known = f"; it is the item {first.item_id}" if first.item_id else ""
        raise Refused(f"{first.error.rstrip('.')}{known}", code=first.code)
    item = shown_item(added.created[0])
    if arguments.wait_s:
        item = await settled_item(call, item.id, arguments.wait_s)
    return Added(item=item, warnings=added.warnings, next=await run_sync(next_of_item, call, item))
