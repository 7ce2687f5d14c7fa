"""The documents flow for fault tests: submits documents, reads rows and checks promises."""

import hashlib
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from pipeline.flows.documents import queries, submission
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.plan import CPU
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.submission import Options
from pipeline.flows.documents.views import DocumentView, PageView
from pipeline.storage.context import Context
from tasks import documents
from tests.support.provider_server import ProviderServer
from tests.support.samples import Sheet, pdf_bytes, shown
from tests.support.waiting import wait_until

DONE_S = 180
"""The time limit of a document, with recovery."""
START_S = 120
"""The time limit for a fleet to start and split a document on a busy machine."""


def settings(**values: str) -> pytest.MarkDecorator:
    """Run the test with these settings, whose names have no prefix."""
    return pytest.mark.parametrize(
        "extra_env", [{f"PENSTOCK_{name}": value for name, value in values.items()}], indirect=True, ids=["own"]
    )


SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@dataclass(frozen=True)
class Flow:
    """Acts of a test on documents and the provider."""

    context: Context
    provider: ProviderServer
    folder: Path

    def sample(self, pages: int, name: str = "sample.pdf") -> Path:
        """Return a PDF whose pages differ, also as small pictures."""
        path = self.folder / name
        sheets = [Sheet(shown(f"{name[:6]} {number}", 30, 400, 90)) for number in range(1, pages + 1)]
        path.write_bytes(pdf_bytes(sheets))
        return path

    def submit(self, pages: int, name: str = "sample.pdf", provider: str = "") -> str:
        """Submit a sample as a user does; return its id."""
        return documents.submit(self.sample(pages, name), provider=provider).id

    def submit_without_launch(self, pages: int, name: str = "sample.pdf") -> str:
        """Insert a document without sending its message; return its id."""
        return submission.submit(self.context, self.sample(pages, name), Options()).id

    def document(self, document_id: str) -> DocumentView:
        return queries.document(self.context, document_id)

    def pages(self, document_id: str, status: PageStatus | None = None) -> list[PageView]:
        return queries.pages(self.context, document_id, status=status)

    def held(self, document_id: str, worker_prefix: str = "") -> set[int]:
        """Return the pages claimed by workers whose id begins with `worker_prefix`."""
        under_way = self.pages(document_id, PageStatus.PROCESSING)
        return {page.page for page in under_way if (page.worker_id or "").startswith(worker_prefix)}

    def wait_for_calls(self, count: int) -> None:
        """Wait until the provider has received this many calls."""
        assert self.provider.wait_for_calls(count, START_S), (
            f"the provider received only {len(self.provider.records)} calls"
        )

    def wait_for_status(
        self, document_id: str, status: DocumentStatus = DocumentStatus.COMPLETED, within_s: float = DONE_S
    ) -> DocumentView:
        wait_until(
            lambda: self.document(document_id).status is status,
            within_s,
            f"the document is {status.name}",
            last=lambda: (self.document(document_id), self.summary(document_id)),
        )
        return self.document(document_id)

    def summary(self, document_id: str) -> dict[str, int]:
        """Count pages by state."""
        return dict(Counter(page.status.name for page in self.pages(document_id)))

    def images(self, document_id: str) -> dict[str, int]:
        """Return pages by the hash of their picture, which the provider records, while the document is converted."""
        query = select(PAGES.c.page, PAGES.c.image_path).where(PAGES.c.document_id == document_id)
        with self.context.db.read() as session:
            rows = session.execute(query).all()
        return {hashlib.sha256(Path(row.image_path).read_bytes()).hexdigest(): row.page for row in rows}

    def calls(self, images: dict[str, int]) -> Counter[int]:
        """Count the provider's calls for each page."""
        return Counter(images[record.image_sha256] for record in self.provider.records)

    def assert_exactly_once(self, document_id: str) -> None:
        """Check that one effective attempt completed each page with its text, and the merged file has all texts."""
        document = self.document(document_id)
        pages = self.pages(document_id)
        attempts = queries.attempts(self.context, document_id)
        good = [attempt for attempt in attempts if attempt.effective and attempt.status == "completed"]
        assert {page.status for page in pages} == {PageStatus.COMPLETED}
        assert [attempt.page for attempt in good] == [page.page for page in pages]
        assert [attempt.text for attempt in good] == [page.content for page in pages]
        assert (document.completed_count, document.failed_count) == (document.pages, 0)
        assert document.merged_path is not None
        merged = Path(document.merged_path).read_text()
        for page in pages:
            assert merged.count(f"<!-- Page {page.page} -->\n\n{page.content.strip()}") == 1

    def cut_connections(self) -> None:
        """Make Redis close all connections except the test's."""
        for client in self.context.redis.client_list():
            if client["cmd"] != "client|list":
                self.context.redis.client_kill_filter(_id=client["id"], skipme=True)

    def wait_until_quiet(self) -> None:
        """Wait until no call is under way and no message waits or runs."""
        wait_until(self._is_quiet, START_S, "no call is under way and no message waits")

    def _is_quiet(self) -> bool:
        redis = self.context.redis
        messages = redis.llen("vision.test") + redis.llen(CPU) + redis.llen("control") + redis.hlen("unacked")
        return not messages and not self.provider.stats(records=False)["under_way"]

    def assert_paid_once(self, images: dict[str, int], repeated: AbstractSet[int] = frozenset()) -> None:
        """Check that each page cost one call, except pages of `repeated`, which were under way at the fault."""
        calls = self.calls(images)
        assert set(calls) == set(images.values())
        assert {page for page, count in calls.items() if count > 1} <= repeated
        assert max(calls.values()) <= 2
