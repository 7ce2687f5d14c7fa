from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UserError
from pipeline.engine.work import Work
from pipeline.flows.documents import files, service
from pipeline.flows.documents.models import ATTEMPTS
from pipeline.flows.documents.queries import UnknownDocument
from pipeline.flows.documents.service import Choice
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import DocumentView
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work import merge
from pipeline.flows.documents.work.document import MERGE, SPLIT
from pipeline.storage.context import Context
from tests.support.documents import (
    Worker,
    at_once,
    attempts,
    bad,
    document,
    good,
    insert_document,
    page_states,
    pages,
    write_output,
)

D, P = DocumentStatus, PageStatus
UNDER_WAY = [P.COMPLETED, P.FAILED, P.PENDING, P.PROCESSING]
STATES = {
    D.PENDING: [],
    D.SPLITTING: [],
    D.PROCESSING: UNDER_WAY,
    D.READY_TO_MERGE: [P.COMPLETED, P.FAILED],
    D.MERGING: [P.COMPLETED, P.FAILED],
    D.COMPLETED: [P.COMPLETED, P.COMPLETED],
    D.FAILED: [P.COMPLETED, P.FAILED],
    D.CANCELLED: [P.COMPLETED, P.FAILED, P.PENDING],
    D.PARTIAL_FAILED: [P.COMPLETED, P.FAILED],
    D.PAUSED: UNDER_WAY,
}
"""A document in every state, with pages in fitting states."""
NEITHER_SPLIT = {D.PENDING: "unknown_page", D.SPLITTING: "unknown_page"}
NOTHING = {D.PENDING: "nothing_to_do", D.SPLITTING: "nothing_to_do"}
ILLEGAL = "illegal_state"
Expected = Mapping[DocumentStatus, DocumentStatus | str]


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__OPENAI__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__OPENAI__MODEL": "m-1",
        "PENSTOCK_PROVIDERS__OPENAI__API_KEY": "sk-1",
        "PENSTOCK_DOCUMENTS__BACKOFF_S": "[5.0]",
    }


def promote(context: Context, document_id: str) -> Any:
    ids = [row.id for row in attempts(context, document_id) if row.page == 2]
    return service.promote(context, document_id, 2, ids[0] if ids else 1)


COMMANDS: dict[str, tuple[Callable[[Context, str], Any], Expected]] = {
    "cancel": (service.cancel, dict.fromkeys(D, D.CANCELLED)),
    "pause": (service.pause, {state: D.PAUSED for state in D if state < D.COMPLETED and state} | {D.PAUSED: D.PAUSED}),
    "resume": (service.resume, {D.PAUSED: D.PROCESSING}),
    "retry": (service.retry, dict.fromkeys((D.FAILED, D.PARTIAL_FAILED, D.CANCELLED, D.COMPLETED), D.PENDING)),
    "retry_page": (
        lambda context, document_id: service.retry_page(context, document_id, 1),
        {**dict.fromkeys(D, D.PROCESSING), **NEITHER_SPLIT, D.MERGING: ILLEGAL, D.PAUSED: ILLEGAL},
    ),
    "retry_failed": (
        service.retry_failed,
        {
            **dict.fromkeys(D, D.PROCESSING),
            D.PENDING: D.PENDING,
            D.SPLITTING: D.SPLITTING,
            D.COMPLETED: D.COMPLETED,
            D.MERGING: ILLEGAL,
            D.PAUSED: ILLEGAL,
        },
    ),
    "remerge": (
        lambda context, document_id: service.remerge(context, document_id, allow_partial=True),
        {**dict.fromkeys((D.COMPLETED, D.PARTIAL_FAILED, D.FAILED, D.CANCELLED), D.READY_TO_MERGE), **NOTHING},
    ),
    "promote": (
        promote,
        {**dict.fromkeys((D.COMPLETED, D.PARTIAL_FAILED, D.FAILED), D.READY_TO_MERGE), D.CANCELLED: D.CANCELLED},
    ),
}
"""The state to which each command leads from each state, or the code of its error; all others are illegal."""


def make(context: Context, status: DocumentStatus, *, states: Sequence[PageStatus] | None = None, **values: Any) -> str:
    """A document in `status` whose page 2 has an attempt with a text."""
    states = STATES[status] if states is None else states
    document_id = insert_document(context, status, states, **values)
    if states:
        row = {"page": 2, "page_source": 2, "provider": "local", "model": "m", "status": "completed", "text": "older"}
        with context.db.transaction() as session:
            session.execute(
                insert(ATTEMPTS).values(document_id=document_id, worker_id="w", created_at=datetime.now(UTC), **row)
            )
    return document_id


def everything(context: Context, document_id: str) -> tuple[Any, ...]:
    return document(context, document_id), pages(context, document_id), attempts(context, document_id)


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.both_databases
def test_in_every_state_a_command_is_legal_or_changes_nothing(context: Context, command: str) -> None:
    act, expected = COMMANDS[command]
    for status in D:
        document_id = make(context, status)
        before = everything(context, document_id)
        outcome = expected.get(status, ILLEGAL)
        if isinstance(outcome, D):
            assert act(context, document_id).status is outcome, status.name
            row = document(context, document_id)
            assert D(row.status) is outcome, status.name
            assert row.claim_id is None or everything(context, document_id) == before, status.name
        else:
            with pytest.raises(UserError) as caught:
                act(context, document_id)
            assert caught.value.code == outcome, status.name
            assert everything(context, document_id) == before, status.name


def test_a_command_on_an_unknown_document_is_refused(context: Context) -> None:
    for act in (*(act for act, _ in COMMANDS.values()), service.remove, service.revive):
        with pytest.raises(UnknownDocument):
            act(context, "0123456789abcdef")


def test_cancel_takes_back_pages_under_way_and_their_results_are_discarded(context: Context) -> None:
    document_id = insert_document(context, pages=[P.COMPLETED, P.PENDING, P.PENDING])
    worker = Worker(context, document_id)
    (unit,) = worker.claim()
    files.temp_folder(context.settings, document_id).mkdir(parents=True)
    service.cancel(context, document_id)
    worker.settle(good(unit))
    assert page_states(context, document_id) == [P.COMPLETED, P.PENDING, P.PENDING]
    row = document(context, document_id)
    assert (D(row.status), row.completed_count, row.progress) == (D.CANCELLED, 1, 35)
    assert pages(context, document_id)[1].attempts == 0
    assert [tried.effective for tried in attempts(context, document_id)] == [False]
    assert not files.temp_folder(context.settings, document_id).exists()
    assert worker.claim() == []


def claim(context: Context, document_id: str, kind: Work) -> Any:
    claimed = stage.claim(context, kind, document_id, Owner("w1", "r:0"))
    assert claimed is not None
    return claimed


@pytest.mark.parametrize("stop", [service.cancel, service.pause, service.remove])
def test_a_stop_wins_over_a_merge_that_is_nearly_done(context: Context, stop: Callable[[Context, str], Any]) -> None:
    document_id = insert_document(context, D.READY_TO_MERGE, [P.COMPLETED])
    row = claim(context, document_id, MERGE)
    stop(context, document_id)
    with pytest.raises(stage.ClaimLost):
        merge.write_result(context, row)
    output = files.output_path(context.settings, document_id, row.filename)
    assert not output.exists()


def test_a_document_that_is_split_shows_five_percent(context: Context) -> None:
    document_id = insert_document(context, D.PENDING, [])
    claim(context, document_id, SPLIT)
    assert document(context, document_id).progress == 5


@pytest.mark.parametrize(
    ("status", "states", "partial", "expected"),
    [
        (D.PENDING, [], False, D.PENDING),
        (D.SPLITTING, [], False, D.PENDING),
        (D.MERGING, [P.COMPLETED], False, D.READY_TO_MERGE),
        (D.READY_TO_MERGE, [P.COMPLETED, P.FAILED], True, D.READY_TO_MERGE),
    ],
)
def test_a_paused_stage_starts_over(
    context: Context, status: DocumentStatus, states: list[PageStatus], partial: bool, expected: DocumentStatus
) -> None:
    document_id = insert_document(context, status, states, allow_partial=partial)
    service.pause(context, document_id)
    assert document(context, document_id).claim_id is None
    view = service.resume(context, document_id)
    assert (view.status, document(context, document_id).attempts) == (expected, 0)


@pytest.mark.parametrize(
    ("last_is_good", "partial", "expected"),
    [(True, False, D.READY_TO_MERGE), (False, False, D.PARTIAL_FAILED), (False, True, D.READY_TO_MERGE)],
)
def test_pages_under_way_end_during_a_pause_and_count_after_it(
    context: Context, last_is_good: bool, partial: bool, expected: DocumentStatus
) -> None:
    document_id = insert_document(context, pages=[P.COMPLETED, P.PENDING], allow_partial=partial)
    worker = Worker(context, document_id)
    (unit,) = worker.claim()
    service.pause(context, document_id)
    worker.settle(good(unit) if last_is_good else bad(unit))
    assert D(document(context, document_id).status) is D.PAUSED
    view = service.resume(context, document_id)
    assert view.status is expected
    assert (view.finished_at is not None) == view.at_rest


def test_a_document_whose_last_page_failed_during_a_pause_fails_after_it(context: Context) -> None:
    document_id = insert_document(context, pages=[P.PENDING])
    worker = Worker(context, document_id)
    (unit,) = worker.claim()
    service.pause(context, document_id)
    worker.settle(bad(unit))
    view = service.resume(context, document_id)
    assert (view.status, view.finished_at is not None) == (D.FAILED, True)
    assert view.error == f"its page failed: {pages(context, document_id)[0].error}"


def test_an_older_text_makes_a_document_partial_whose_pages_all_failed(context: Context) -> None:
    document_id = make(context, D.FAILED, states=[P.FAILED] * 3, error="all 3 pages failed: why")
    view = promote(context, document_id)
    assert (view.status, view.completed_count, view.error) == (D.PARTIAL_FAILED, 1, None)
    assert service.remerge(context, document_id, allow_partial=True).status is D.READY_TO_MERGE


def test_retrying_a_document_starts_over_but_keeps_the_ledger(context: Context) -> None:
    document_id = make(context, D.PARTIAL_FAILED, error="why", merged_path="/x.md")
    view = service.retry(context, document_id, fresh=True)
    row = document(context, document_id)
    assert (view.status, view.progress, view.pages, view.completed_count, view.failed_count) == (D.PENDING, 0, 0, 0, 0)
    assert (view.error, view.finished_at, row.attempts, row.use_cache) == (None, None, 0, False)
    assert (row.merged_path, view.outdated) == ("/x.md", True), "readable until there is a new one"
    assert pages(context, document_id) == []
    assert [tried.text for tried in attempts(context, document_id)] == ["older"]


def test_retrying_a_document_with_another_provider_names_its_model(context: Context) -> None:
    document_id = make(context, D.FAILED)
    view = service.retry(context, document_id, Choice("openai"))
    assert (view.provider, view.model, view.model_name) == ("openai", "", "m-1")


@pytest.mark.parametrize(("page", "figures"), [(1, (0, 1)), (2, (1, 0))])
def test_a_retried_page_is_no_longer_counted(context: Context, page: int, figures: tuple[int, int]) -> None:
    document_id = make(context, D.PARTIAL_FAILED, error="1 page failed")
    view = service.retry_page(context, document_id, page)
    row = pages(context, document_id)[page - 1]
    assert (row.status, row.attempts, row.error, row.use_cache) == (P.RETRYING, 0, None, False)
    assert (view.completed_count, view.failed_count) == figures
    assert (view.error, view.finished_at, view.progress) == (None, None, 5 + 45 * figures[0])


@pytest.mark.parametrize("state", [P.PENDING, P.PROCESSING, P.RETRYING])
def test_only_completed_and_failed_pages_can_be_retried(context: Context, state: PageStatus) -> None:
    document_id = insert_document(context, pages=[state, P.PENDING])
    before = everything(context, document_id)
    with pytest.raises(UserError, match=state.name):
        service.retry_page(context, document_id, 1)
    assert everything(context, document_id) == before


def test_a_page_s_old_text_stays_until_a_new_one_replaces_it(context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [P.COMPLETED] * 2)
    merged = Path(write_output(context, document_id))

    def text() -> str:
        return str(pages(context, document_id)[0].content)

    service.retry_page(context, document_id, 1)
    worker = Worker(context, document_id)
    (unit,) = worker.claim()
    assert text() == "text of page 1"
    worker.settle(bad(unit))
    assert text() == "text of page 1"
    assert D(document(context, document_id).status) is D.PARTIAL_FAILED
    assert merged.read_text() == "merged before\n"
    service.retry_page(context, document_id, 1)
    (unit,) = worker.claim()
    worker.settle(good(unit, "better"))
    assert text() == "better"


def test_another_provider_stays_with_its_page(context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [P.COMPLETED] * 2)
    service.retry_page(context, document_id, 2, Choice("openai", "m-2"))
    assert Worker(context, document_id).claim() == [], "no longer a page for local lanes"
    worker = Worker(context, document_id, queue="vision.openai")
    (unit,) = worker.claim()
    assert (unit.provider, unit.model) == ("openai", "m-2")
    worker.settle(bad(unit, ErrorKind.TRANSIENT))
    (unit,) = worker.claim(later_s=10)
    assert (unit.provider, unit.model) == ("openai", "m-2")
    worker.settle(bad(unit))
    service.retry_failed(context, document_id)
    assert [(row.provider, row.model) for row in pages(context, document_id)] == [("local", ""), ("openai", "m-2")]
    assert (document(context, document_id).provider, document(context, document_id).model) == ("local", "")


def retry_second_page(context: Context, document_id: str, choice: Choice) -> DocumentView:
    return service.retry_page(context, document_id, 2, choice)


@pytest.mark.parametrize("command", [service.retry, service.retry_failed, retry_second_page])
def test_an_invalid_choice_is_refused_and_changes_nothing(context: Context, command: Any) -> None:
    document_id = make(context, D.PARTIAL_FAILED)
    before = everything(context, document_id)
    for choice in (Choice("nowhere"), Choice(model="m"), Choice("local", "m"), Choice("openai", "\0")):
        with pytest.raises(UserError) as caught:
            command(context, document_id, choice)
        assert caught.value.code in {"unknown_provider", "unknown_model"}
        assert everything(context, document_id) == before


def test_retrying_failed_pages_touches_no_other(context: Context) -> None:
    document_id = insert_document(context, D.PARTIAL_FAILED, [P.FAILED, P.COMPLETED, P.FAILED])
    before = pages(context, document_id)[1]
    view = service.retry_failed(context, document_id, Choice("openai"))
    assert page_states(context, document_id) == [P.RETRYING, P.COMPLETED, P.RETRYING]
    assert pages(context, document_id)[1] == before
    assert (view.status, view.completed_count, view.failed_count, view.progress) == (D.PROCESSING, 1, 0, 35)
    assert {row.provider for row in pages(context, document_id) if row.page != 2} == {"openai"}


@pytest.mark.both_databases
def test_retrying_failed_pages_converts_the_untried_pages_of_a_partial_result_too(context: Context) -> None:
    document_id = insert_document(context, D.CANCELLED, [P.COMPLETED, P.PENDING])
    assert service.retry_failed(context, document_id).status is D.CANCELLED, "the user stopped it"
    service.remerge(context, document_id, allow_partial=True)
    assert merge.merge_document(context, document_id, Owner("w1", "r:0"))
    charged: list[int] = []
    choice = Choice("openai")
    view = service.retry_failed(context, document_id, choice, charge=charged.append)
    assert (view.status, charged) == (D.PROCESSING, [0])
    worker = Worker(context, document_id, queue="vision.openai")
    (unit,) = worker.claim()
    worker.settle(good(unit, "read"))
    assert page_states(context, document_id) == [P.COMPLETED, P.COMPLETED]
    assert D(document(context, document_id).status) is D.READY_TO_MERGE


def test_gaps_are_merged_only_when_they_are_allowed(context: Context) -> None:
    document_id = make(context, D.PARTIAL_FAILED)
    before = everything(context, document_id)
    with pytest.raises(UserError, match="1 of 2 pages") as caught:
        service.remerge(context, document_id)
    assert caught.value.code == "incomplete"
    assert everything(context, document_id) == before
    service.remerge(context, document_id, allow_partial=True)
    assert merge.merge_document(context, document_id, Owner("w1", "r:0"))
    row = document(context, document_id)
    assert (D(row.status), row.progress) == (D.PARTIAL_FAILED, 95)
    assert "> **[Page 2 is missing: it failed]**" in Path(row.merged_path).read_text()


def test_promoting_an_attempt_makes_its_text_the_page_s_and_fills_the_gap(context: Context) -> None:
    document_id = make(context, D.PARTIAL_FAILED)
    view = promote(context, document_id)
    assert (view.status, view.completed_count, view.failed_count) == (D.READY_TO_MERGE, 2, 0)
    assert (pages(context, document_id)[1].content, pages(context, document_id)[1].error) == ("older", None)
    for page, attempt in ((1, attempts(context, document_id)[0].id), (2, 10**6)):
        service.cancel(context, document_id)
        with pytest.raises(UserError) as caught:
            service.promote(context, document_id, page, attempt)
        assert caught.value.code == "unknown_attempt"


@pytest.mark.both_databases
def test_a_removed_document_leaves_neither_rows_nor_files_whatever_its_state(context: Context) -> None:
    other, *removed = [make(context, status) for status in (D.PROCESSING, *D)]
    folders = (files.upload_folder, files.temp_folder, files.output_folder)
    for folder in folders:
        for owner in (other, *removed):
            folder(context.settings, owner).mkdir(parents=True)
            (folder(context.settings, owner) / "file").touch()
    before = everything(context, other)
    for document_id in removed:
        service.remove(context, document_id)
        assert pages(context, document_id) == attempts(context, document_id) == []
    for folder in folders:
        assert [path.name for path in folder(context.settings, other).parent.iterdir()] == [other]
    assert everything(context, other) == before


@pytest.mark.both_databases
def test_of_two_simultaneous_retries_one_is_refused(context: Context) -> None:
    document_id = make(context, D.PARTIAL_FAILED)

    def retry(_: int) -> str:
        try:
            return service.retry(context, document_id).status.name
        except UserError as error:
            return error.code

    assert sorted(at_once(2, retry)) == ["PENDING", "illegal_state"]
