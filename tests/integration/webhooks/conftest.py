"""A receiver, and a driver that does the workers' part."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from sqlalchemy import update

from pipeline.engine.claims import Owner
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus
from pipeline.flows.webhooks import plan, queries
from pipeline.flows.webhooks.models import DELIVERIES, ENDPOINTS
from pipeline.flows.webhooks.work import delivery
from pipeline.storage.context import Context
from tests.support.documents import insert_document
from tests.support.webhook_receiver import Receiver


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_WEBHOOKS__ALLOW_PRIVATE": "true", "PENSTOCK_WEBHOOKS__TIMEOUT_S": "5"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        yield server


@dataclass
class Driver:
    """Makes events, and sends due deliveries."""

    context: Context

    def __post_init__(self) -> None:
        self._numbers = count()

    def event(self, event: DocumentEvent = DocumentEvent.PAUSE, **columns: Any) -> str:
        """Change a document; return its id."""
        document_id = insert_document(self.context, DocumentStatus.PENDING, **columns)
        self.context.db.run(lambda session: DOCUMENT.move(session, DOCUMENTS, event, DOCUMENTS.c.id == document_id))
        return document_id

    def run(self) -> int:
        """Fan out, and send all due deliveries; return the number of attempts."""
        plan.due(self.context)
        tried = 0
        while delivery.send(self.context, self.owner()).done:
            tried += 1
        return tried

    def owner(self) -> Owner:
        return Owner("w:1:a", f"m{next(self._numbers)}")

    def pass_time(self, **by: float) -> None:
        """Let waiting rows wait for this time, such as `days=1`."""
        earlier = timedelta(**by)

        def act(session: object) -> None:
            for table, names in (
                (DELIVERIES, ("next_run_at",)),
                (ENDPOINTS, ("paused_until", "failing_since", "former_until")),
            ):
                for row in session.execute(table.select()).all():  # type: ignore[attr-defined]
                    moved = {name: getattr(row, name) - earlier for name in names if getattr(row, name) is not None}
                    if moved:
                        session.execute(update(table).where(table.c.id == row.id).values(**moved))  # type: ignore[attr-defined]

        self.context.db.run(act)

    def statuses(self) -> list[str]:
        """Return the states of deliveries, the oldest first."""
        return [delivery.status.value for delivery in reversed(queries.deliveries(self.context))]


@pytest.fixture
def driver(context: Context) -> Driver:
    return Driver(context)
