"""The knowledge flow for fault tests: adds bases and notes, reads rows and checks promises."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge import queries
from pipeline.flows.knowledge.models import BATCHES, ITEMS
from pipeline.flows.knowledge.rules.passage import digest_of
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.providers.lexical import LexicalEmbeddings
from pipeline.settings import LOCAL
from pipeline.storage import vectors
from pipeline.storage.context import Context
from tasks import knowledge
from tests.support.knowledge_driver import Driver, long_text, published
from tests.support.provider_server import ProviderServer, default_vector
from tests.support.waiting import wait_until

DONE_S = 180
START_S = 120


@dataclass(frozen=True)
class Knowledge:
    """Acts of a test on knowledge, its rows and the provider."""

    context: Context
    provider: ProviderServer
    folder: Path

    def base(self, name: str = "base", **options: Any) -> str:
        return knowledge.create_base(name, **options).id

    def files(self, count: int, chunks: int, name: str = "file") -> list[Path]:
        """Write different text files, each with this many chunks."""
        (self.folder / "in").mkdir(exist_ok=True)
        paths = [self.folder / "in" / f"{name} {number:03}.md" for number in range(count)]
        for path in paths:
            path.write_text(long_text(path.stem, chunks))
        return paths

    def add(self, base: str, count: int, chunks: int = 6, name: str = "file") -> list[str]:
        """Add files and launch their items; return their ids."""
        added = knowledge.add_files(base, self.files(count, chunks, name))
        assert not added.failed
        return [item.id for item in added.created]

    def states(self) -> dict[str, int]:
        """Count items by state."""
        with self.context.db.read() as session:
            return dict(Counter(session.execute(select(ITEMS.c.status)).scalars()))

    def finish(self, within_s: float = DONE_S) -> None:
        wait_until(lambda: set(self.states()) == {"completed"}, within_s, "all items are completed", last=self.describe)

    def describe(self) -> object:
        """Describe the state for the report of a failed test."""
        with self.context.db.read() as session:
            rows = session.execute(select(ITEMS.c.name, ITEMS.c.status, ITEMS.c.progress, ITEMS.c.error)).all()
            held = session.execute(select(BATCHES.c.item_id, BATCHES.c.status, BATCHES.c.worker_id)).all()
        return rows[:10], held[:10], self.provider.counts

    def completions(self) -> list[str]:
        """Return the names of the items in the order of their completion."""
        with self.context.db.read() as session:
            return list(session.execute(select(ITEMS.c.name).order_by(ITEMS.c.finished_at)).scalars())

    def paid(self) -> Counter[str]:
        """Count paid embeddings of each text."""
        good = (record for record in self.provider.records if record.status == 200)
        return Counter(text for record in good for text in record.body["input"])

    def assert_as_without_faults(self, ids: list[str], chunks: int = 6) -> None:
        """Check that chunks and vectors equal, row by row, those of a run without faults."""
        rows = published(self.context)
        assert len(rows) == len(ids) * chunks
        for item_id in ids:
            item = queries.item(self.context, item_id)
            assert (item.status, item.progress, item.chunk_count) == (ItemStatus.COMPLETED, 100, chunks)
            texts = Driver.texts_of(self.context, item_id)
            text = long_text(item.name.removesuffix(".md"), chunks)
            assert texts == [paragraph.strip() for paragraph in text.split("\n\n")]
        for *_, text, _heading, _page, _start, _end, digest, model, _dims, data in rows:
            assert digest == digest_of(text)
            expected = LexicalEmbeddings().embed([text]).vectors[0] if model.startswith(LOCAL) else default_vector(text)
            assert data == vectors.pack([expected])
        assert checking.check(self.context).sound, checking.check(self.context)

    def assert_paid_once(self, repeated: int = 0) -> None:
        """Check that each text was paid for once, except texts of at most `repeated` calls under way at the fault."""
        twice = {text: count for text, count in self.paid().items() if count > 1}
        assert sum(count - 1 for count in twice.values()) <= 2 * repeated, twice
