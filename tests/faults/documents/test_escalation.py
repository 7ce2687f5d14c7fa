"""A worker that dies while it escalates a page."""

import signal
from pathlib import Path

import pytest
from PIL import Image
from sqlalchemy import func, select, update

from pipeline.flows.documents import queries
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.models import ESCALATIONS, PAGES
from pipeline.flows.documents.rules.escalation import parse_budget
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.work.page import Attempt
from pipeline.providers.protocols import Answer
from pipeline.storage.context import Context
from tests.faults.documents.doomed import lane
from tests.faults.flow import START_S, settings
from tests.support.documents import Worker, document, insert_document, only, pages
from tests.support.provider_server import ProviderServer
from tests.support.stack import python

pytestmark = pytest.mark.faults
PRICES = '{"*": {"input": 1, "output": 1}}'


@settings(PROVIDERS__OTHER__PRICES=PRICES)
def test_a_worker_killed_between_answer_and_settlement_pays_once_and_leaks_no_budget(
    context: Context, provider: ProviderServer, data_dir: Path, settings_env: dict[str, str]
) -> None:
    most = parse_budget("0.5").cost
    document_id = insert_document(context, pages=[PageStatus.PENDING], escalate="other", budget="0.5", budget_cost=most)
    worker = Worker(context, document_id)
    worker.settle(Attempt(only(worker.claim()), Answer("an [illegible] page", "local")))
    image = data_dir / "page.png"
    Image.effect_noise((40, 40), 50).save(image)
    with context.db.transaction() as session:
        session.execute(update(PAGES).where(PAGES.c.document_id == document_id).values(image_path=str(image)))

    env = settings_env | {"DOCUMENT": document_id}
    with python("tests.faults.documents.doomed", data_dir, context, env) as doomed:
        assert doomed.wait(START_S) == -signal.SIGKILL
    assert len(provider.records) == 1
    assert pages(context, document_id)[0].content == "an [illegible] page"
    FLOW.free_lost(context, {"dead:1:a"})
    lane(context, document_id, "other:1:b")

    assert len(provider.records) == 1, "the answer was kept"
    (page,) = queries.pages(context, document_id)
    row = document(context, document_id)
    assert (page.status, page.provider, page.content[:6]) == (PageStatus.COMPLETED, "other", "# Page")
    assert page.escalation is not None
    assert page.escalation.cost == row.escalated_cost == row.cost > 0
    assert row.status == DocumentStatus.READY_TO_MERGE
    with context.db.read() as session:
        assert session.execute(select(func.sum(ESCALATIONS.c.reserved))).scalar_one() == 0
