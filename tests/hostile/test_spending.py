"""Callers try to exceed `api.spend_per_day` or to charge other accounts. The cap is 1, and a page costs 1.1."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import insert, select, update
from starlette.testclient import TestClient

from pipeline.engine import accounts, traces
from pipeline.engine.accounts import CALLER, CHARGES, RESERVATIONS, OverCap, Part
from pipeline.flows.documents.models import DOCUMENTS as ROWS
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.knowledge import service
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.screenshots.frames import buffer
from pipeline.flows.screenshots.models import BATCHES, SHOTS
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.interfaces.api.app import create_app
from pipeline.operations import accounts as statements
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tasks import documents, knowledge
from tests.support import assistant
from tests.support.calls import call_row
from tests.support.documents import insert_document, page_row
from tests.support.frames import Desktop, draw
from tests.support.knowledge_driver import Driver, long_text
from tests.support.samples import text_pdf

PRICE = 1.1
OUTPUT = 2750
"""The price of a million tokens. Without calls on record, the estimate for a page is 400 tokens of output."""
API = "/api/v1"


@pytest.fixture
def cap() -> str:
    return "1"


@pytest.fixture
def settings_env(cap: str) -> dict[str, str]:
    own = "PENSTOCK_PROVIDERS__AI__"
    prices = f'{{"*": {{"output": {OUTPUT}}}}}'
    providers = {f"PENSTOCK_SCREENSHOTS__{kind}_PROVIDER": "ai" for kind in ("VISION", "TEXT")}
    knowing = {"PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER": "ai", "PENSTOCK_KNOWLEDGE__EMBEDDINGS_MODEL": "small"}
    music = {"PENSTOCK_MUSIC__PROVIDER": "ai"}
    profile = {f"{own}API_KEY": "x", f"{own}MODEL": "small", f"{own}PRICES": prices}
    return {**profile, **providers, **knowing, "PENSTOCK_PROVIDER": "ai", **music, "PENSTOCK_API__SPEND_PER_DAY": cap}


class Key:
    """The client of one key."""

    def __init__(self, context: Context, name: str) -> None:
        secret, key = api_keys.create(context, name, Scope.WRITE)
        self.context, self.id = context, key.id
        headers = {"authorization": f"Bearer {secret}"}
        self.http = TestClient(create_app(context, "127.0.0.1"), base_url="http://127.0.0.1", headers=headers)

    @property
    def spent(self) -> float:
        return statements.statement(self.context, self.id).spent

    @property
    def reserved(self) -> float:
        return statements.statement(self.context, self.id).reserved

    def submit(self, folder: Path, pages: int = 1, name: str = "") -> Any:
        """Submit a new document each time, or the document of this name."""
        pdf = text_pdf(folder / f"{name or uuid4().hex}.pdf", [[name or uuid4().hex]] * pages).read_bytes()
        return self.http.post(f"{API}/documents", files={"file": ("a.pdf", pdf)})

    def act(self, document_id: str, verb: str) -> Any:
        return self.http.post(f"{API}/documents/{document_id}/{verb}")


@pytest.fixture
def callers(context: Context) -> Iterator[tuple[Key, Key]]:
    ann, bob = Key(context, "ann"), Key(context, "bob")
    with ann.http, bob.http:
        yield ann, bob


@pytest.fixture
def ann(callers: tuple[Key, Key]) -> Key:
    return callers[0]


@pytest.fixture
def bob(callers: tuple[Key, Key]) -> Key:
    return callers[1]


def call(context: Context, scope_id: object, unit: object = 1, cost: float = PRICE, **values: Any) -> None:
    """Record a call as a worker does after the answer."""
    row = call_row("ai", context.db.now(), scope_id=str(scope_id), unit=str(unit), cost=cost, call_id=uuid4().hex)
    context.db.run(lambda session: traces.record(session, {**row, **values}))


def convert(context: Context, document_id: str, pages: int = 1, first: int = 1) -> None:
    """Convert these last pages like workers, with a paid call for each."""
    with context.db.transaction() as session:
        for number in range(first, pages + 1):
            session.execute(insert(PAGES).values(page_row(document_id, number, PageStatus.COMPLETED, "ai")))
    for number in range(first, pages + 1):
        call(context, document_id, number)
    done = {"status": DocumentStatus.COMPLETED, "pages": pages, "completed_count": pages}
    with context.db.transaction() as session:
        session.execute(update(ROWS).where(ROWS.c.id == document_id).values(**done))


def test_a_retry_by_another_key_does_not_empty_an_account(context: Context, ann: Key, bob: Key, tmp_path: Path) -> None:
    document_id = ann.submit(tmp_path, name="mine").json()["id"]
    convert(context, document_id)
    assert ann.submit(tmp_path).status_code == 429
    assert bob.act(document_id, "retry-failed").status_code == 202, "no page had failed, so nothing is charged"
    assert bob.submit(tmp_path, name="mine").json()["id"] == document_id
    assert bob.act(document_id, "pages/1/retry").status_code == 202
    assert (ann.spent, bob.spent) == (pytest.approx(PRICE), 0)
    assert ann.submit(tmp_path).status_code == 429
    call(context, document_id)
    assert (ann.spent, bob.spent) == (pytest.approx(PRICE), pytest.approx(PRICE)), "a retry by B is charged to B"
    assert bob.submit(tmp_path).status_code == 429


def test_a_retry_of_one_page_leaves_the_other_pages_on_their_account(
    context: Context, ann: Key, bob: Key, tmp_path: Path
) -> None:
    document_id = ann.submit(tmp_path).json()["id"]
    states = [PageStatus.COMPLETED, PageStatus.PENDING]
    with context.db.transaction() as session:
        at_work = {"status": DocumentStatus.PROCESSING, "pages": 2, "completed_count": 1}
        session.execute(update(ROWS).where(ROWS.c.id == document_id).values(**at_work))
        rows = [page_row(document_id, number, state, "ai") for number, state in enumerate(states, 1)]
        session.execute(insert(PAGES), rows)
    assert bob.act(document_id, "pages/1/retry").status_code == 202
    call(context, document_id, 1, 0.25)
    call(context, document_id, 2, 0.5)
    assert (ann.spent, bob.spent) == (0.5, 0.25)


def test_a_call_under_way_is_charged_to_its_requester(context: Context, ann: Key, bob: Key, tmp_path: Path) -> None:
    document_id = ann.submit(tmp_path).json()["id"]
    began = context.db.now()
    assert ann.act(document_id, "cancel").status_code == 200
    assert bob.act(document_id, "retry").status_code == 202
    call(context, document_id, cost=0.25, created_at=began)
    call(context, document_id, cost=0.5)
    assert (ann.spent, bob.spent) == (0.25, 0.5)


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_calls_under_way_stay_reserved_after_the_deletion_of_their_document(
    context: Context, ann: Key, tmp_path: Path, verb: str
) -> None:
    document_id = ann.submit(tmp_path).json()["id"]
    with context.db.transaction() as session:
        session.execute(update(ROWS).where(ROWS.c.id == document_id).values(status=DocumentStatus.PROCESSING, pages=1))
        session.execute(insert(PAGES).values(page_row(document_id, 1, PageStatus.PROCESSING, "ai")))
    if verb == "cancel":
        assert ann.act(document_id, "cancel").status_code == 200
    else:
        assert ann.http.delete(f"{API}/documents/{document_id}").status_code == 204
    assert ann.reserved == 1
    assert ann.submit(tmp_path).status_code == 429, "the call is not charged yet"
    call(context, document_id)
    assert ann.spent == pytest.approx(PRICE)


def test_reservations_without_a_call_are_released(context: Context, ann: Key, tmp_path: Path) -> None:
    for _ in range(3):
        answer = ann.submit(tmp_path)
        assert answer.status_code == 202
        refused = ann.submit(tmp_path)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) <= 60, "reservations end soon"
        ann.act(answer.json()["id"], "cancel")
    assert (ann.spent, ann.reserved) == (0, 0)


def test_deleting_documents_refunds_nothing(context: Context, ann: Key, tmp_path: Path) -> None:
    document_id = ann.submit(tmp_path).json()["id"]
    convert(context, document_id)
    assert ann.http.delete(f"{API}/documents/{document_id}").status_code == 204
    assert ann.submit(tmp_path).status_code == 429
    assert ann.spent == pytest.approx(PRICE)


def framed(key: Key, number: int) -> Any:
    """Send a frame unlike all others."""
    picture = BytesIO()
    draw(Desktop(seed=number, title=f"{number}.txt")).save(picture, "PNG")
    sent = {"source": "screen:0", "ts": datetime.now(UTC).isoformat()}
    return key.http.post(f"{API}/screenshots", files={"file": ("a.png", picture.getvalue())}, data=sent)


def analysed(context: Context, shot_id: int, status: WorkStatus = WorkStatus.SUCCEEDED) -> int:
    """Analyse the frame like workers, at a cost of 2.2; return its batch."""
    buffer.batch(context, "screen:0", all_at_once=True)
    with context.db.transaction() as session:
        own_shot = SHOTS.c.id == shot_id
        batch_id: int = session.execute(select(SHOTS.c.batch_id).where(own_shot)).scalar_one()
        session.execute(update(BATCHES).where(BATCHES.c.id == batch_id).values(status=status))
        session.execute(update(SHOTS).where(own_shot).values(status=status))
    for unit in ("1", "expand"):
        call(context, batch_id, unit, flow="screenshots")
    return batch_id


def test_deleting_frames_refunds_nothing_and_charges_no_other_key(context: Context, ann: Key, bob: Key) -> None:
    shot_id = framed(ann, 1).json()["id"]
    batch_id = analysed(context, shot_id)
    assert framed(ann, 2).status_code == 429
    now = datetime.now(UTC)
    within = {"since": (now - timedelta(days=1)).isoformat(), "until": (now + timedelta(days=1)).isoformat()}
    assert ann.http.delete(f"{API}/screenshots", params=within).status_code == 200
    assert framed(ann, 3).status_code == 429
    other = framed(bob, 4).json()["id"]
    assert other > shot_id, "no id is reused"
    assert analysed(context, other) != batch_id
    assert (ann.spent, bob.spent) == (pytest.approx(2 * PRICE), pytest.approx(2 * PRICE))


def test_frames_of_two_keys_in_one_batch_are_shared(context: Context, ann: Key, bob: Key) -> None:
    framed(ann, 1)
    shot_id = framed(bob, 2).json()["id"]
    analysed(context, shot_id)
    assert (ann.spent, bob.spent) == (pytest.approx(PRICE), pytest.approx(PRICE))


def test_the_replay_of_a_dead_letter_is_charged_to_its_requester(context: Context, ann: Key, bob: Key) -> None:
    batch_id = analysed(context, framed(ann, 1).json()["id"], WorkStatus.FAILED_PERMANENT)
    replay = {"ids": [f"batch:{batch_id}"]}
    assert ann.http.post(f"{API}/screenshots/dead-letters/actions/replay", json=replay).status_code == 429
    assert bob.http.post(f"{API}/screenshots/dead-letters/actions/replay", json=replay).json()["done"] == 1
    for unit in ("1", "expand"):
        call(context, batch_id, unit, flow="screenshots")
    assert (ann.spent, bob.spent) == (pytest.approx(2 * PRICE), pytest.approx(2 * PRICE))
    assert framed(bob, 2).status_code == 429


def test_a_replay_by_an_assistant_is_admitted_and_paid_for(context: Context, ann: Key, bob: Key) -> None:
    batch_id = analysed(context, framed(ann, 1).json()["id"], WorkStatus.FAILED_PERMANENT)
    assert "this key has spent its 1" in assistant.refused(
        ann.http, "retry", kind="screenshots", id=f"batch:{batch_id}"
    )
    assistant.use(bob.http, "retry", kind="screenshots", id=f"batch:{batch_id}")
    call(context, batch_id, 1, flow="screenshots")
    assert (ann.spent, bob.spent) == (pytest.approx(2 * PRICE), pytest.approx(PRICE))


class TestResume:
    @pytest.fixture
    def cap(self) -> str:
        return "9"

    def test_a_resumed_document_is_admitted_like_a_submission(
        self, context: Context, ann: Key, bob: Key, tmp_path: Path
    ) -> None:
        large = ann.submit(tmp_path, 8).json()["id"]
        assert ann.reserved == pytest.approx(8 * PRICE)
        assert ann.act(large, "pause").status_code == 200
        other = ann.submit(tmp_path, 7).json()["id"]
        convert(context, other, 7)
        assert ann.act(large, "resume").status_code == 429
        assert act_on(ann, "resume", large)["done"] == 0
        assert ann.http.get(f"{API}/documents/{large}").json()["status"] == "PAUSED"
        assert bob.act(large, "resume").status_code == 202
        convert(context, large, 8)
        assert (ann.spent, bob.spent) == (pytest.approx(7 * PRICE), pytest.approx(8 * PRICE))

    def test_pausing_and_resuming_reserves_nothing_twice(self, ann: Key, tmp_path: Path) -> None:
        large = ann.submit(tmp_path, 8).json()["id"]
        for _ in range(3):
            assert ann.act(large, "pause").status_code == 200
            assert ann.act(large, "resume").status_code == 202
        assert ann.reserved == pytest.approx(8 * PRICE)

    def test_more_pages_than_the_cap_covers_are_refused(self, ann: Key, tmp_path: Path) -> None:
        refused = ann.submit(tmp_path, 9)
        assert refused.status_code == 429
        assert "may cost 9.9" in refused.json()["detail"]
        assert ann.reserved == 0

    def test_simultaneous_retries_are_admitted_in_sequence(self, context: Context, ann: Key, tmp_path: Path) -> None:
        """One account retries twenty-four documents at once."""
        document_ids = [insert_document(context, DocumentStatus.FAILED, [PageStatus.FAILED], "ai") for _ in range(24)]
        with ThreadPoolExecutor(12) as pool:
            answers = Counter(
                answer.status_code for answer in pool.map(lambda key: ann.act(key, "retry"), document_ids)
            )
        assert answers == {202: 8, 429: 16}
        assert ann.reserved == pytest.approx(8 * PRICE)
        with context.db.read() as session:
            accepted = list(session.execute(select(RESERVATIONS.c.item_id)).scalars())
        for document_id in accepted:
            convert(context, document_id)
        assert ann.spent <= 9


class TestEscalation:
    @pytest.fixture
    def cap(self) -> str:
        return "9"

    def test_simultaneous_escalations_by_two_keys_pay_each_page_once(
        self, context: Context, ann: Key, bob: Key
    ) -> None:
        document_id = doubtful(context, 3)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda key: escalate(key, document_id), [ann, bob] * 8))
        assert {answer.status_code for answer in answers} == {202}
        assert ann.reserved + bob.reserved == pytest.approx(3 * PRICE)
        for number in (1, 2, 3):
            call(context, document_id, number)
        assert sorted((ann.spent, bob.spent)) == [0, pytest.approx(3 * PRICE)], "one request sent them all"

    def test_simultaneous_escalations_by_one_key_pass_no_cap(self, context: Context, ann: Key) -> None:
        document_ids = [doubtful(context, 1) for _ in range(24)]
        with ThreadPoolExecutor(12) as pool:
            answers = Counter(pool.map(lambda each: escalate(ann, each).status_code, document_ids))
        assert answers == {202: 8, 429: 16}
        assert ann.reserved == pytest.approx(8 * PRICE)


def doubtful(context: Context, pages: int) -> str:
    """A converted document whose pages are all doubtful."""
    document_id = insert_document(context, DocumentStatus.COMPLETED, [PageStatus.COMPLETED] * pages)
    with context.db.transaction() as session:
        session.execute(update(PAGES).where(PAGES.c.document_id == document_id).values(doubtful=True, confidence=0.5))
    return document_id


def escalate(key: Key, document_id: str) -> Any:
    return key.http.post(f"{API}/documents/{document_id}/escalate", json={"provider": "ai"})


def act_on(key: Key, verb: str, document_id: str) -> Any:
    return key.http.post(f"{API}/documents/actions/{verb}", json={"ids": [document_id]}).json()


def test_accounts_outlast_redis(context: Context, ann: Key, tmp_path: Path) -> None:
    convert(context, ann.submit(tmp_path).json()["id"])
    context.redis.flushall()
    assert ann.submit(tmp_path).status_code == 429


def test_calls_under_way_at_midnight_count_for_the_next_day(
    context: Context, ann: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document_id = ann.submit(tmp_path).json()["id"]
    tomorrow = context.db.now() + timedelta(days=1)
    monkeypatch.setattr(context.db, "now", lambda: tomorrow)
    assert ann.reserved == 1
    assert ann.submit(tmp_path).status_code == 429
    convert(context, document_id)
    assert ann.spent == pytest.approx(PRICE)
    monkeypatch.setattr(context.db, "now", lambda: tomorrow + timedelta(days=1))
    assert (ann.spent, ann.reserved) == (0, 0)
    assert ann.submit(tmp_path).status_code == 202


def test_knowledge_is_reserved_charged_and_kept(context: Context, ann: Key, bob: Key) -> None:
    base = knowledge.create_base("notes").id

    def add(key: Key, text: str) -> Any:
        return key.http.post(f"{API}/knowledge-bases/{base}/items", json={"type": "note", "content": text})

    item = add(ann, "The pump station was checked at nine.").json()["created"][0]["id"]
    call(context, item, 0, flow="knowledge")
    assert add(ann, "Pressure fell by four bar.").status_code == 429
    assert bob.http.post(f"{API}/knowledge-items/{item}/reprocess").status_code == 202
    knowledge.delete(item)
    assert add(ann, "Pressure fell by four bar.").status_code == 429
    call(context, item, 0, 0.25, flow="knowledge")
    assert (ann.spent, bob.spent) == (pytest.approx(PRICE), 0.25)


class TestTexts:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        own = "PENSTOCK_PROVIDERS__EMB__"
        named = {f"PENSTOCK_KNOWLEDGE__EMBEDDINGS_{field}": it for field, it in (("PROVIDER", "emb"), ("MODEL", "v"))}
        prices = '{"*": {"input": 1000}}'
        named["PENSTOCK_KNOWLEDGE__BATCH_SIZE"] = "5"
        return {f"{own}API_KEY": "x", f"{own}PRICES": prices, **named, "PENSTOCK_API__SPEND_PER_DAY": "1"}

    @pytest.mark.parametrize(("paragraphs", "status"), [(10, ItemStatus.EMBEDDING), (100, ItemStatus.FAILED)])
    def test_the_cost_of_a_long_item_is_reserved_before_its_embedding(
        self, context: Context, monkeypatch: pytest.MonkeyPatch, paragraphs: int, status: ItemStatus
    ) -> None:
        """Like the page of an address, which a worker reads only after its addition."""
        monkeypatch.setattr(service, "estimate", lambda *_: [Part(1, 0.001)])
        base = knowledge.create_base("notes", chunk_tokens=32, chunk_overlap=0).id
        driver, text = Driver(context), long_text("note", paragraphs)
        CALLER.set("ann")
        (item,) = driver.note(base, text)
        CALLER.set("")
        driver.round()
        assert driver.status(item) is status
        account = statements.statement(context, "ann")
        if status is ItemStatus.FAILED:
            assert "this may cost" in driver.row(item).error
            assert account.reserved == 0
        else:
            assert account.reserved == pytest.approx(len(text) / 4 * 0.001, rel=0.2)


def test_a_song_s_run_is_charged_to_the_key_that_started_or_resumed_it(context: Context, ann: Key, bob: Key) -> None:
    run = ann.http.post(f"{API}/music/runs", json={"mode": "metadata", "skip_sync": True})
    run_id = run.json()["id"]
    call(context, run_id, flow="music")
    assert ann.http.post(f"{API}/music/pause").status_code == 200
    assert ann.http.post(f"{API}/music/resume").status_code == 429
    assert bob.http.post(f"{API}/music/resume").status_code == 202
    call(context, run_id, cost=0.25, flow="music")
    assert (ann.spent, bob.spent) == (pytest.approx(PRICE), 0.25)


def test_a_retry_on_this_machine_is_charged_to_no_account(context: Context, ann: Key, tmp_path: Path) -> None:
    document_id = ann.submit(tmp_path).json()["id"]
    convert(context, document_id)
    documents.retry(document_id)
    call(context, document_id)
    assert ann.spent == pytest.approx(PRICE)


def test_simultaneous_searches_are_reserved_before_their_calls(context: Context, ann: Key) -> None:
    CALLER.set(ann.id)

    def admit(session: Any, search: str) -> None:
        wanted = {search: [Part(1, 0.6)]}
        accounts.admit(session, "knowledge", wanted, lasts_s=60)

    context.db.run(lambda session: admit(session, "one"))
    with pytest.raises(OverCap):
        context.db.run(lambda session: admit(session, "two"))
    call(context, traces.SEARCH, ann.id, 0.1, flow="knowledge", of=(("one", ""),))
    context.db.run(lambda session: accounts.close(session, "knowledge", "one"))
    context.db.run(lambda session: admit(session, "two"))
    assert (ann.spent, ann.reserved) == (pytest.approx(0.1), pytest.approx(0.6))


def test_an_account_lists_its_charges(context: Context, ann: Key, bob: Key, tmp_path: Path) -> None:
    document_id = ann.submit(tmp_path).json()["id"]
    convert(context, document_id)
    account = ann.http.get(f"{API}/account").json()
    assert (account["cap"], account["spent"], account["reserved"]) == (1, pytest.approx(PRICE), 0)
    assert [(charge["scope_id"], charge["unit"], charge["cost"]) for charge in account["charges"]] == [
        (document_id, "1", PRICE)
    ]
    assert bob.http.get(f"{API}/account").json()["charges"] == []
    assert bob.http.get(f"{API}/keys/{ann.id}/account").status_code == 403
    with context.db.read() as session:
        assert session.execute(select(CHARGES.c.owner)).scalars().all() == [ann.id]
