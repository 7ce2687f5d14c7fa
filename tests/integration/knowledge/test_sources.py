"""Sources that fail for a moment, lose most of their content, or turn out large once they are read."""

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.flows.knowledge import directory, files, intake, plan, queries, service
from pipeline.flows.knowledge.intake import Source
from pipeline.flows.knowledge.rules.workload import is_large
from pipeline.flows.knowledge.states import LINE, ItemStatus, ItemType, Loss
from pipeline.flows.knowledge.views import Activity
from pipeline.flows.knowledge.work import publication
from pipeline.reading.files import user_file
from pipeline.reading.text import text_files
from pipeline.storage.context import Context
from tests.support.knowledge_driver import Driver, long_text
from tests.support.web_server import WebServer, html, xml

PARAGRAPH = "<p>" + "Penstock moves pages through steps that are slow and fail. " * 6 + "</p>"


@pytest.fixture
def extra_env() -> dict[str, str]:
    return {"PENSTOCK_KNOWLEDGE__ALLOW_PRIVATE_ADDRESSES": '["127.0.0.1/32"]'}


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


def add_address(context: Context, base: str, kind: ItemType, url: str) -> str:
    return intake.add(context, base, [Source(kind, url=url)]).created[0].id


def serve_sitemap(server: WebServer, *numbers: int) -> str:
    addresses = {number: server.url(f"/{number}", "127.0.0.1") for number in numbers}
    server.pages |= {f"/{number}": html(f"<h1>Page {number}</h1>{PARAGRAPH}") for number in numbers}
    listed = "".join(f"<url><loc>{address}</loc></url>" for address in addresses.values())
    server.pages["/sitemap.xml"] = xml(f"<urlset>{listed}</urlset>")
    return server.url("/sitemap.xml", "127.0.0.1")


def test_an_address_that_fails_for_a_moment_waits_as_long_as_its_server_asks_and_takes_no_place(
    context: Context, driver: Driver, base: str, server: WebServer
) -> None:
    server.pages["/"] = lambda request: request.answer(status="503 Service Unavailable", Retry_After="3600")
    item_id = add_address(context, base, ItemType.URL, server.url("/", "127.0.0.1"))
    driver.work_off()
    row = driver.row(item_id)
    assert (row.status, row.admitted_at) == (ItemStatus.PENDING, None)
    assert 3500 < (row.next_run_at - context.db.now()).total_seconds() < 3700
    standing = queries.standings(context, [item_id])[item_id]
    assert (standing.activity, "503" in standing.reason) == (Activity.WAITING, True)
    assert 3500 < (plan.next_wait_s(context) or 0) < 3700
    driver.completed(base, "another item goes on")
    server.pages["/"] = html(f"<h1>Here</h1>{PARAGRAPH}")
    driver.change(item_id, next_run_at=context.db.now())
    assert plan.due(context) == [LINE]
    driver.work_off()
    row = driver.row(item_id)
    assert row.status == ItemStatus.COMPLETED
    assert abs(row.workload - len("\n\n".join(driver.texts(item_id))) / 2) < 20, "half of its text, not of its address"


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EIO, errno.ESTALE])
def test_a_locked_file_is_read_three_times(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def locked(*_: Any) -> None:
        raise OSError(number, "the disk is busy")

    (item_id,) = driver.note(base, "note")
    with monkeypatch.context() as patch:
        patch.setattr(text_files, "_kind", locked)
        for _ in range(2):
            driver.work_off()
            assert driver.status(item_id) is ItemStatus.PENDING
            driver.skip_waits()
        driver.work_off()
    row = driver.row(item_id)
    assert (row.status, row.attempts, "after 3 attempts" in row.error) == (ItemStatus.FAILED, 3, True)


def test_a_file_that_is_locked_for_a_moment_is_added(
    context: Context, base: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    failures = iter([errno.EAGAIN, errno.EBUSY])

    def open_file(path: Any, **options: Any) -> Any:
        if number := next(failures, None):
            raise OSError(number, "locked")
        return user_file.open_file(path, **options)

    monkeypatch.setattr(files, "_RETRY_S", (0.0, 0.0))
    monkeypatch.setattr(files, "open_file", open_file)
    (tmp_path / "a.md").write_text("text")
    assert len(directory.scan(context, base, tmp_path).created) == 1


def test_a_sitemap_that_lost_most_pages_keeps_its_text_until_confirmed(
    context: Context, driver: Driver, base: str, server: WebServer
) -> None:
    item_id = add_address(context, base, ItemType.SITEMAP, serve_sitemap(server, 1, 2, 3, 4, 5))
    driver.work_off()
    known = driver.texts(item_id)
    serve_sitemap(server, 1, 2)
    service.reprocess(context, item_id)
    driver.work_off()
    item = queries.item(context, item_id)
    assert (item.status, item.loss) == (ItemStatus.FAILED, Loss.DOUBTFUL)
    assert "3 of 5 pages are missing" in (item.error or "")
    assert driver.texts(item_id) == known
    service.reprocess(context, item_id, loss=Loss.ACCEPTED)
    driver.work_off()
    item = queries.item(context, item_id)
    assert (item.status, item.loss) == (ItemStatus.COMPLETED, None)
    assert len(driver.texts(item_id)) < len(known)


def test_a_sitemap_of_five_hundred_pages_is_large_and_a_file_of_that_size_is_not() -> None:
    workload = 500 * 5_000 // 2
    assert is_large(workload, 0, large_mb=20)
    assert not is_large(workload, workload, large_mb=20)


def test_progress_moves_while_vectors_are_written(
    context: Context, driver: Driver, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "MOST_AT_ONCE", 2)
    (item_id,) = driver.note(base, long_text("note", 8))
    seen: list[int] = []
    written = publication._write

    def write(*arguments: Any, **options: Any) -> None:
        seen.append(driver.progress(item_id))
        written(*arguments, **options)

    monkeypatch.setattr(publication, "_write", write)
    driver.work_off()
    assert seen == [96, 97, 98, 99]
    assert driver.progress(item_id) == 100
