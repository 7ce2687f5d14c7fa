"""A document that overwhelms its reader process fails page by page, with a reason, and affects nothing else."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import ImageFile

from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.reading.ocr.rendition import Rendition
from pipeline.reading.pdf import inspection
from pipeline.reading.pdf.pages import Pages
from pipeline.reading.sandbox import child, child_process
from pipeline.reading.sandbox.limits import Limits, page_limits
from pipeline.settings import DocumentSettings
from tests.support import bombs
from tests.support.readers import readers
from tests.support.samples import Sheet, pdf_bytes, shown, text_pdf

SMALL = page_limits(timeout_s=60, memory_mb=200)
HASTY = page_limits(timeout_s=1, memory_mb=2_000)


@pytest.fixture(autouse=True)
def _children_end() -> Iterator[None]:
    yield
    child.close_idle()


@pytest.fixture(autouse=True, scope="module")
def _own_server() -> None:
    child.close_idle()  # of earlier tests
    child_process.end_server()
    child_process._servers.clear()  # of a stack that an earlier test used in this process


def refusal(act: Callable[[], object]) -> UnitError:
    with pytest.raises(UnitError) as caught:
        act()
    assert caught.value.kind is ErrorKind.PERMANENT
    return caught.value


@pytest.fixture
def with_bomb(tmp_path: Path) -> Path:
    """Write three pages. The second one is a bomb."""
    path = tmp_path / "three.pdf"
    bomb = bombs.nested_forms_sheet(first=7)
    path.write_bytes(pdf_bytes([Sheet(shown("one", 72, 700)), bomb, Sheet(shown("three", 72, 700))]))
    return path


def test_a_page_that_takes_all_memory_fails_alone(with_bomb: Path) -> None:
    with Pages(with_bomb, SMALL) as pages:
        assert pages.convert(1).text == "one"
        error = refusal(lambda: pages.convert(2))
        assert (error.code, str(error)) == ("too_large", "Reading page 2 takes more than the allowed 200 MB.")
        assert pages.convert(3).text == "three"


def test_a_document_that_takes_all_memory_is_not_surveyed(with_bomb: Path) -> None:
    with Pages(with_bomb, SMALL) as pages:
        assert refusal(lambda: pages.survey([1, 2, 3], lambda: None)).code == "too_large"


def test_a_page_that_is_a_thousand_times_larger_than_its_file_fails(tmp_path: Path) -> None:
    with Pages(bombs.packed_content(tmp_path / "a.pdf"), replace(SMALL, timeout_s=5)) as pages:
        assert refusal(lambda: pages.convert(1)).code in {"too_large", "too_slow"}
    assert readers() == []


def test_a_picture_that_says_its_scans_for_hours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bombs.many_scans(tmp_path / "a.jpg")
    monkeypatch.setattr(inspection, "_CAPS", Limits(timeout_s=1, memory_mb=1_500))
    with pytest.raises(UserError) as caught:
        inspection.inspect(path, "holiday.jpg", DocumentSettings())
    assert (caught.value.code, str(caught.value)) == ("too_slow", "Reading holiday.jpg takes more than 1 s; split it.")
    with Pages(path, HASTY) as pages:
        assert str(refusal(lambda: pages.convert(1))) == "Reading page 1 takes more than 1 s."
        assert refusal(lambda: pages.render(1, tmp_path / "out", Rendition(72), 10**6)).code == "too_slow"
    assert readers() == []


def test_a_picture_that_unpacks_to_all_memory_is_not_unpacked_by_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bombs.wide_palette(tmp_path / "a.png")
    unpacked: list[ImageFile.ImageFile] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", unpacked.append)
    with Pages(path, SMALL) as pages:
        assert refusal(lambda: pages.convert(1)).code == "too_large"
    assert not unpacked


def test_pages_of_one_document_are_read_by_one_child_that_opens_it_once(tmp_path: Path) -> None:
    path = text_pdf(tmp_path / "a.pdf", [["one"], ["two"]])
    child.close_idle()
    with Pages(path, SMALL) as pages:
        assert pages.convert(1).text == "one"
        (first,) = readers()
        path.unlink()
        assert pages.convert(2).text == "two"
        assert readers() == [first]


def test_a_child_started_in_advance_reads_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child.close_idle()
    child_process.end_server()
    monkeypatch.setattr(child_process, "FORKS", False)  # as on macOS
    child.prepare()
    (prepared,) = readers()
    with Pages(text_pdf(tmp_path / "a.pdf", [["one"]]), SMALL) as pages:
        assert pages.convert(1).text == "one"
        assert readers() == [prepared]
    child.close_idle()


def test_a_caller_that_stops_waiting_leaves_no_child_behind(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop() -> bool:
        raise Stopped

    child.close_idle()
    path = bombs.many_scans(tmp_path / "a.jpg")
    with Pages(path, SMALL) as pages, pytest.raises(Stopped):
        pages.render(1, tmp_path / "out", Rendition(72), 10**6, stop)
    assert readers() == []


def test_a_signal_for_all_processes_of_a_worker_fails_no_page(tmp_path: Path) -> None:
    child.close_idle()
    with Pages(text_pdf(tmp_path / "a.pdf", [["one"], ["two"]]), SMALL) as pages:
        pages.convert(1)
        (process,) = readers()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            process.send_signal(number)
        assert pages.convert(2).text == "two"
        assert readers() == [process]


def test_a_child_ends_with_its_parent_even_while_it_is_stuck() -> None:
    read_end, write_end = os.pipe()
    stuck = "import sys, re; from pipeline.reading.sandbox.child_main import _end_with; _end_with(int(sys.argv[1]))\n"
    stuck += "print(flush=True); re.match('(a+)+$', 'a' * 60 + 'b')"  # never releases the GIL
    with subprocess.Popen(
        [sys.executable, "-c", stuck, str(read_end)], pass_fds=[read_end], stdout=subprocess.PIPE
    ) as process:
        os.close(read_end)
        assert process.stdout
        process.stdout.readline()
        os.close(write_end)
        assert process.wait(60) == -signal.SIGIO


def test_a_killed_child_is_replaced_and_after_a_second_kill_the_page_waits(tmp_path: Path) -> None:
    child.close_idle()
    killed: list[int] = []

    def kill(times: int) -> bool:
        for process in readers():
            has_picture = process.memory_info().rss > 80_000_000  # it has decoded the picture
            if has_picture and len(killed) < times and process.pid not in killed:
                process.kill()
                killed.append(process.pid)
        return True

    path = bombs.many_scans(tmp_path / "a.jpg", repeats=80)
    with Pages(path, SMALL) as pages:
        assert pages.render(1, tmp_path / "out", Rendition(72), 10**6, lambda: kill(1)).exists()
        assert len(killed) == 1
        killed.clear()
        with pytest.raises(UnitError) as caught:
            pages.render(1, tmp_path / "out", Rendition(72), 10**6, lambda: kill(9))
    assert (caught.value.kind, caught.value.code) == (ErrorKind.TRANSIENT, "reader_killed")


def test_a_fork_has_nothing_to_do_with_the_children_of_its_parent(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from pipeline.reading.sandbox import child\n"
        "from pipeline.reading.pdf import pages\n"
        "from pipeline.reading.sandbox.limits import page_limits\n"
        "opened = pages.Pages(Path(sys.argv[1]), page_limits(60, 200))\n"
        "one = opened.convert(1).text\n"
        "fork = os.fork()\n"
        "assert opened.convert(2).text == 'two'\n"
        "opened.close(); child.close_idle()\n"
        "if not fork: os._exit(0)\n"
        "sys.exit(os.waitpid(fork, 0)[1])\n"
    )
    path = text_pdf(tmp_path / "a.pdf", [["one"], ["two"]])
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=120)


def test_a_failure_to_start_a_child_is_a_transient_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    child.close_idle()
    monkeypatch.setattr(child_process, "start", refuse)
    with Pages(text_pdf(tmp_path / "a.pdf", [["one"]]), SMALL) as pages, pytest.raises(UnitError) as caught:
        pages.convert(1)
    assert (caught.value.kind, caught.value.code) == (ErrorKind.TRANSIENT, "no_reader")


def test_page_numbers_are_passed_to_a_child_as_runs(tmp_path: Path) -> None:
    path = text_pdf(tmp_path / "a.pdf", [[f"page {number}"] for number in range(1, 8)])
    with Pages(path, SMALL) as pages:
        assert re.search(r'"pages": 7\b', pages.survey([1, 2, 5, 7], lambda: None))


@pytest.mark.parametrize(
    ("took_s", "used_s", "is_over"),
    [(9, 9, False), (11, 11, True), (11, 2, False), (29, 2, False), (29, 6, True), (31, 2, True)],
)
def test_a_machine_that_is_too_busy_is_not_the_files_fault(
    monkeypatch: pytest.MonkeyPatch, took_s: float, used_s: float, is_over: bool
) -> None:
    now, used = 100.0, 7.0
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=lambda: now))
    clock = child._Clock(child._Bounds("page 1", page_limits(10, 200), ""), lambda: used)
    clock.start()
    now, used = now + took_s, used + used_s
    if is_over:
        assert refusal(clock.check).code == "too_slow"
    else:
        clock.check()


def test_a_child_killed_by_the_system_is_a_transient_error_whatever_its_memory() -> None:
    bounds = child._Bounds("page 1", page_limits(10, 200), "")
    ends = {-signal.SIGKILL: "reader_killed", -signal.SIGABRT: "too_large", -signal.SIGXCPU: "too_slow"}
    for ended, code in ends.items():
        error = bounds.crash(ended, 150 * 10**6)
        assert (error.code, error.kind is ErrorKind.TRANSIENT) == (code, ended == -signal.SIGKILL)
