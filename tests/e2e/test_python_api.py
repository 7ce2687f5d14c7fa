"""Penstock from Python: users' programs beside a running stack."""

import json
from typing import Any

from tests.support.cli import Cli, new_pdf
from tests.support.provider_server import Fault, ProviderServer


def program(cli: Cli, body: str) -> Any:
    """Run a program and return the value that it passes to `show`."""
    head = "import json, sys\nfrom pathlib import Path\nshow = lambda value: print(json.dumps(value, default=str))\n"
    result = cli.python(head + body)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_submit_and_wait_gives_the_text(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=3)
    shown = program(
        cli,
        """
from tasks.documents import submit
document = submit("report.pdf", page_range="2-3")
waited = document.wait(timeout_s=60)
show([document.id, waited.id, waited.status.name, waited.pages, waited.read_text(), str(waited.manifest_path)])
""",
    )
    assert shown[0] == shown[1]
    assert shown[2:4] == ["COMPLETED", 2]
    assert "This is page 3" in shown[4]
    assert shown[5].endswith("report.manifest.json")


def test_a_program_keeps_its_own_celery_application(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=2)
    shown = program(
        cli.real(),
        """
from celery import Celery, current_app, shared_task
host = Celery("host", broker="memory://", backend="cache+memory://")
@shared_task
def greet(): pass
from tasks import knowledge, music, screenshots
from tasks.documents import submit
document = submit("report.pdf", page_range="1-2").wait(timeout_s=60)
greet.delay()
show([document.status.name, current_app.main, greet.app.main, greet.app.conf.broker_url])
""",
    )
    assert shown == ["COMPLETED", "host", "host", "memory://"]


def test_same_submission_gives_the_same_document_unless_fresh(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf")
    first, second, fresh = program(
        cli,
        """
from tasks.documents import Options, submit
ids = [submit(Path("report.pdf")).id, submit("report.pdf", Options()).id, submit("report.pdf", fresh=True).id]
show(ids)
""",
    )
    assert first == second != fresh


def test_watch_shows_every_document_until_all_have_settled(cli: Cli, provider: ProviderServer) -> None:
    provider.configure({"latency_s": 0.5})
    for name in ("one.pdf", "two.pdf"):
        new_pdf(cli.cwd / name, pages=20)
    seen = program(
        cli,
        """
from tasks.documents import submit, watch
documents = [submit(name, provider="ai") for name in ("one.pdf", "two.pdf")]
show([[d.filename, d.status.name, d.completed_count] for d in watch([d.id for d in documents], timeout_s=100)])
""",
    )
    for name in ("one.pdf", "two.pdf"):
        counts = [count for filename, _, count in seen if filename == name]
        assert counts == sorted(counts)
        assert len(counts) >= 3, "watch shows progress before the end"
        assert [status for filename, status, _ in seen if filename == name][-1] == "COMPLETED"


def test_a_wait_ends_at_its_time_out_and_the_work_continues(cli: Cli, provider: ProviderServer) -> None:
    provider.configure({"latency_s": 4})
    new_pdf(cli.cwd / "report.pdf", pages=2)
    shown = program(
        cli,
        """
import time
from tasks.documents import status, submit
document = submit("report.pdf", provider="ai")
began = time.monotonic()
try:
    document.wait(timeout_s=0.3)
except TimeoutError as error:
    gave_up = str(error)
took_s = time.monotonic() - began
show([gave_up, took_s, status(document.id).at_rest, document.wait(timeout_s=60).status.name])
""",
    )
    assert "has not settled after 0.3 s" in shown[0]
    assert shown[1] > 0.25
    assert shown[2:] == [False, "COMPLETED"], "the wait ended before the work"


def test_failed_pages_are_listed_and_retried(cli: Cli, provider: ProviderServer) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=3)
    provider.push(Fault(status=400))
    shown = program(
        cli,
        """
from tasks.documents import PageStatus, attempts, pages, retry_failed, submit
document = submit("report.pdf", provider="ai").wait(timeout_s=60)
failed = pages(document.id, status=PageStatus.FAILED)
done = retry_failed(document.id, model="vision-2").wait(timeout_s=60)
ledger = [attempt.status for attempt in attempts(document.id, failed[0].page)]
show([document.status.name, len(failed), bool(failed[0].error), done.status.name, ledger])
""",
    )
    assert shown[:4] == ["PARTIAL_FAILED", 1, True, "COMPLETED"]
    assert shown[4][-1] == "completed"
    assert len(shown[4]) == 2


def test_document_can_be_paused_resumed_cancelled_and_deleted(cli: Cli, provider: ProviderServer) -> None:
    # One page at a time takes a minute, so that the pause comes before the end on any machine.
    provider.configure({"latency_s": 2})
    new_pdf(cli.cwd / "report.pdf", pages=30)
    shown = program(
        cli,
        """
from tasks.documents import UnknownDocument, cancel, delete, list_documents, pause, resume, status, submit
document = submit("report.pdf", provider="single")
states = [pause(document.id).wait(timeout_s=60).status.name]
states.append(cancel(resume(document.id).id).wait(timeout_s=60).status.name)
listed = document.id in [row.id for row in list_documents(limit=10)]
delete(document.id)
try:
    status(document.id)
except UnknownDocument as error:
    unknown = str(error)
show([states, listed, unknown])
""",
    )
    assert shown[0] == ["PAUSED", "CANCELLED"]
    assert shown[1] is True
    assert "there is no document" in shown[2]


def test_errors_say_what_is_wrong_and_leave_nothing_behind(cli: Cli) -> None:
    (cli.cwd / "bad.pdf").write_text("no PDF")
    new_pdf(cli.cwd / "good.pdf")
    before = sorted((cli.data_dir / "uploads").iterdir())
    shown = program(
        cli,
        """
from tasks.documents import Options, UserError, status, submit
calls = [
    lambda: submit("missing.pdf"), lambda: submit("bad.pdf"), lambda: submit("."), lambda: status("nobody"),
    lambda: submit("good.pdf", page_range="9"), lambda: submit("good.pdf", provider="nobody"),
]
codes = []
for call in calls:
    try:
        call()
    except UserError as error:
        codes.append(error.code)
show(codes)
""",
    )
    assert shown == ["missing", "unsupported", "directory", "unknown_document", "page_range", "unknown_provider"]
    assert sorted((cli.data_dir / "uploads").iterdir()) == before


def test_without_a_stack_the_database_is_created_and_a_wait_warns(alone: Cli) -> None:
    new_pdf(alone.cwd / "report.pdf")
    shown = program(
        alone,
        """
import warnings
from tasks import documents, knowledge, screenshots
from tasks.documents import submit, watch

listed = documents.list_documents()
document = submit("report.pdf")
seen, warned = [], []
def watched():
    for view in watch(document.id, timeout_s=1.5):
        seen.append(view.no_worker and str(view.no_worker))
for wait in (watched, lambda: document.wait(timeout_s=1.5)):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            wait()
        except TimeoutError as error:
            warned.append([str(error), [[w.category.__name__, w.filename] for w in caught]])
show([listed, document.status.name, warned, seen])
""",
    )
    assert shown[:2] == [[], "PENDING"]
    assert len(shown[2]) == 2
    for message, caught in shown[2]:
        assert "1 document has not settled after 1.5 s. No stack runs on" in message
        assert caught == [["NoWorkerWarning", "<string>"]], "one warning, at the line that waits"
    assert shown[3][0] is None
    assert "`penstock up`" in shown[3][-1]
