"""Every kind of file becomes text or is clearly refused, whatever it does to its reader process."""

import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, Unwanted
from pipeline.reading.text.sections import Reading
from pipeline.reading.text.text_files import read_file
from tests.support.corpus import corpus_file
from tests.support.readers import readers
from tests.support.waiting import wait_until

LIMITS = Limits()


@pytest.fixture(autouse=True, scope="module")
def _children_end() -> Iterator[None]:
    yield
    child.close_idle()


def read(path: Path, name: str = "", limits: Limits = LIMITS) -> Reading:
    return read_file(path, name or path.name, limits, lambda: True)


def refusal(path: Path, name: str = "", limits: Limits = LIMITS) -> UnitError:
    with pytest.raises(UnitError) as caught:
        read(path, name, limits)
    assert caught.value.kind == ErrorKind.PERMANENT
    return caught.value


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test.docx", "AutoGen: Enabling Next-Gen LLM Applications"),
        ("test.epub", "A test EPUB document"),
        ("test.pdf", "# 1 Introduction"),
        ("test.pptx", "A table to test parsing"),
        ("test.xlsx", "| Alpha | Beta |"),
        ("test_blog.html", "Large language models"),
        ("test_mskanji.csv", "| 髙橋淳 | 35 | 名古屋 |"),
        ("test_rss.xml", "# The Official Microsoft Blog"),
        ("test_wikipedia.html", "## History"),
    ],
)
def test_files_of_the_corpus_are_read(name: str, says: str):
    assert says in read(corpus_file(f"knowledge/{name}")).text


def test_pages_and_slides_keep_their_numbers():
    assert [section.page for section in read(corpus_file("knowledge/test.pptx")).sections] == [1, 2, 3, 4, 5, 6]
    assert [section.page for section in read(corpus_file("knowledge/test.pdf")).sections] == [1]


def test_menus_contents_and_links_of_headings_to_themselves_are_not_text(tmp_path: Path):
    html = """<a href="#m">Skip to content</a>
    <header><nav><a href="/">Lantern home</a></nav><ul><li><a href="/b">Lantern parts</a></ul></header>
    <div><ul><li><a href="#oil">Lantern oil</a><ul><li><a href="#wick">Lantern wick</a></ul></ul></div>
    <main id="m"><h1>Guide<a href="#m" title="Link to this heading">¶</a></h1>
    <p>The <a href="#oil">lantern</a> burns.</p>
    <h2 id="oil"><a href="#oil"></a>Oil</h2><ul><li><a href="/x">Rape</a> is cheap, fish is not</ul>
    <ul><li><a href="/see">See also</a></ul></main>"""
    text = read(written(tmp_path / "a.html", html)).text
    assert text.split("\n\n") == [
        "# Guide",
        "The [lantern](#oil) burns.",
        "## Oil",
        "* Rape is cheap, fish is not",
        "* See also",
    ]
    menu = written(tmp_path / "menu.html", '<nav><ul><li><a href="/a">One thing</a></ul></nav>')
    assert "One thing" in read(menu).text, "the only text of the page is lost"
    deep = written(tmp_path / "deep.html", "<ul><li><a href='#x'>y</a>" * 3000)
    assert "y" in read(deep).text


def test_random_bytes_are_refused():
    assert refusal(corpus_file("knowledge/random.bin")).code == "unsupported"


def packed(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def written(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", "Größe".encode("iso-8859-15") * 30, "Größe"),
        ("a.txt", "\ufeffmit Marke".encode(), "mit Marke"),
        ("a.txt", "breit".encode("utf-16"), "breit"),
        ("a.txt", "breit ohne Marke".encode("utf-16-le"), "breit ohne Marke"),
        ("a.csv", "ä;b\n1;2\n".encode("utf-8-sig"), "| ä | b |\n| --- | --- |\n| 1 | 2 |"),
        ("a.html", '<meta charset="shift_jis"><p>髙橋'.encode("cp932"), "橋"),
        ("lies.docx", b"<!DOCTYPE html><html><body><h2>Title</h2></body></html>", "## Title"),
        ("speaks.md", b"A PDF begins with %PDF-1.7, says this text.", "says this text"),
        ("a.ipynb", b'{"cells": [{"cell_type": "markdown", "source": ["# Note"]}], "nbformat": 4}', "# Note"),
        ("a.json", b'{"key": "value"}', '{"key": "value"}'),
        ("a.xml", b"<?xml version='1.0'?><root>text</root>", "<root>text</root>"),
        ("a.py", b"# comment\r\nx = 1\r\n", "# comment\nx = 1\n"),
        ("lines.txt", b"a\0b\r\nc" + b"text " * 200, "ab\nc"),
    ],
)
def test_the_encoding_of_a_text_is_detected_from_its_content(tmp_path: Path, name: str, data: bytes, says: str):
    assert says in read(written(tmp_path / "stored", data), name).text


def test_source_code_is_not_taken_for_markdown(tmp_path: Path):
    assert [section.plain for section in read(written(tmp_path / "x", "# comment"), "x.py").sections] == [True]
    assert [section.plain for section in read(written(tmp_path / "x", "# heading"), "x.md").sections] == [False]


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("a.txt", b"", "empty"),
        ("a.txt", b" \n\t\n", "no_text"),
        ("a.docx", b"PK\x03\x04 cut off", "corrupt"),
        ("a.pdf", b"%PDF-1.7 cut off", "corrupt"),
        ("a.png", b"\x89PNG\r\n\x1a\n cut off", "corrupt"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600, "unsupported"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "Workbook".encode("utf-16-le") + b"\0" * 600, "corrupt"),
        ("a.xlsx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), "encrypted"),
        ("program", b"\x7fELF" + bytes(range(256)) * 20, "unsupported"),
    ],
)
def test_an_unreadable_file_is_refused_with_a_reason(tmp_path: Path, name: str, data: bytes, code: str):
    error = refusal(written(tmp_path / "stored", data), name)
    assert error.code == code
    assert name in str(error)


def test_a_pdf_with_a_password_is_refused():
    assert refusal(corpus_file("documents/failing-encrypted.pdf")).code == "encrypted"


def test_archives_are_measured_before_they_are_unpacked(tmp_path: Path):
    inside = {"[Content_Types].xml": b"", "xl/workbook.xml": b" " * 20_000_000}
    assert refusal(packed(tmp_path / "bomb.xlsx", inside)).code == "too_large"
    assert (
        refusal(
            packed(tmp_path / "many.docx", {f"word/{n}": b"" for n in range(30)}), "", replace(LIMITS, max_entries=20)
        ).code
        == "too_large"
    )
    assert refusal(packed(tmp_path / "a.zip", {"a.txt": b"text"})).code == "archive"
    drawing = {"mimetype": b"application/vnd.oasis.opendocument.graphics"}
    assert refusal(packed(tmp_path / "a.odg", drawing)).code == "unsupported"
    assert (
        refusal(packed(tmp_path / "bad.docx", {"[Content_Types].xml": b"<x", "word/document.xml": b"<x"})).code
        == "corrupt"
    )


def test_entities_neither_multiply_nor_show_files_of_this_machine(tmp_path: Path):
    (tmp_path / "secret").write_text("what nobody may read")
    fetched = f'<!DOCTYPE x [<!ENTITY e SYSTEM "file://{tmp_path}/secret">]>'
    grown = '<!DOCTYPE x [<!ENTITY e "' + "x" * 10_000 + '">]>'
    word = (
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>{}'
    )
    word += "</w:t></w:r></w:p></w:body></w:document>"
    feed = '<rss version="2.0"><channel><title>t{0}</title><item><title>{0}</title></item></channel></rss>'
    for kind, text, count in (("fetched", fetched, 1), ("grown", grown, 5000)):
        inside = {"[Content_Types].xml": b"<Types/>", "word/document.xml": (text + word.format("&e;" * count)).encode()}
        packed(tmp_path / f"{kind}.docx", inside)
        written(tmp_path / f"{kind}.xml", text + feed.format("&e;" * count))
    for path in sorted(tmp_path.glob("*.*")):
        with suppress(UnitError):  # a refusal is as good
            content = read(path).text
            assert "nobody may read" not in content
            assert len(content) < 100_000


def test_more_text_or_markup_or_bytes_than_allowed_is_refused(tmp_path: Path):
    assert refusal(written(tmp_path / "a.txt", "text " * 50), "", replace(LIMITS, max_chars=100)).code == "too_large"
    assert refusal(written(tmp_path / "a.txt", "text " * 50), "", replace(LIMITS, max_bytes=100)).code == "too_large"
    assert refusal(written(tmp_path / "a.html", b"<html>" + b"<p>x" * 12_500_000)).code == "too_large"
    assert refusal(corpus_file("knowledge/test_rss.xml"), "", replace(LIMITS, max_chars=1000)).code == "too_large"


@pytest.fixture
def slow_file(tmp_path: Path) -> Path:
    """Write a file that takes many seconds and much memory."""
    return written(tmp_path / "slow.html", "<html>" + "<table><tr><td>x" * 400_000)


def test_a_read_past_its_time_limit_is_killed(slow_file: Path):
    child.close_idle()
    assert refusal(slow_file, "", replace(LIMITS, timeout_s=0.5)).code == "too_slow"
    assert readers() == []


def test_a_read_past_its_memory_limit_is_killed(slow_file: Path):
    assert refusal(slow_file, "", replace(LIMITS, memory_mb=250)).code == "too_large"


def test_a_read_that_is_no_longer_wanted_is_killed(slow_file: Path):
    child.close_idle()
    with pytest.raises(Unwanted):
        read_file(slow_file, "slow.html", LIMITS, lambda: not readers())
    assert readers() == []


def test_a_crash_is_the_files_fault_and_the_next_file_is_read(slow_file: Path):
    child.close_idle()
    failed: list[UnitError] = []
    reader = threading.Thread(target=lambda: failed.append(refusal(slow_file)))
    reader.start()
    (process,) = wait_until(readers, 60, "a child reads")
    wait_until(lambda: process.memory_info().rss > 150_000_000, 60, "the child has started to read the file")
    process.send_signal(signal.SIGSEGV)
    reader.join(60)
    assert failed[0].code == "unreadable"
    assert "SIGSEGV" in str(failed[0])
    assert "Alpha" in read(corpus_file("knowledge/test.xlsx")).text


def test_an_idle_child_that_has_ended_is_replaced():
    child.close_idle()
    read(corpus_file("knowledge/test.xlsx"))
    (process,) = readers()
    process.kill()
    assert "Alpha" in read(corpus_file("knowledge/test.xlsx")).text


def test_a_child_knows_none_of_our_secrets_and_cannot_connect(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_PROVIDERS__X__API_KEY", "secret")
    child.close_idle()
    read(corpus_file("knowledge/test_mskanji.csv"))
    (process,) = readers()
    assert not [name for name in process.environ() if name.startswith("PENSTOCK")]
    program = (
        "import socket; from pipeline.reading.sandbox.child_main import _restrict; _restrict()\n"
        "socket.create_connection(('127.0.0.1', 9))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "not allowed while files are read" in done.stderr


def test_children_end_with_the_process_that_started_them():
    program = (
        "import os, sys; from pathlib import Path; from pipeline.reading.sandbox.limits import Limits\n"
        "from pipeline.reading.text.text_files import read_file; from pipeline.reading.sandbox import child\n"
        f"read_file(Path({str(corpus_file('knowledge/test_mskanji.csv'))!r}), 'a.csv', Limits(), lambda: True)\n"
        "print(child._pool.idle[0].process.pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        orphan = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until(lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, 60, "the child ended")


def test_a_forked_process_has_children_of_its_own():
    arguments = [str(corpus_file("knowledge/test_mskanji.csv")), "髙橋淳"]
    subprocess.run(
        [sys.executable, "-m", "tests.unit.reading.sandbox.forked_reader", *arguments], check=True, timeout=120
    )


def test_many_threads_read_at_once():
    path = corpus_file("knowledge/test_mskanji.csv")
    with ThreadPoolExecutor(4) as threads:
        assert len({reading.text for reading in threads.map(lambda _: read(path), range(8))}) == 1
    assert len(readers()) <= 2


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path):
    original = corpus_file("documents/SPARSE-2024-INV-1234_borderless_table.pdf")
    path = written(tmp_path / "growing.pdf", original.read_bytes())

    def grow(_: float) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    with pytest.raises(UnitError, match="changed") as caught:
        read_file(path, "growing.pdf", LIMITS, lambda: True, grow)
    assert (caught.value.kind, caught.value.code) == (ErrorKind.TRANSIENT, "changed")


def test_pipes_folders_and_missing_files_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "pipe").code == "unsupported"
    assert refusal(tmp_path).code == "unsupported"
    assert refusal(tmp_path / "nothing").code == "missing"


def test_progress_grows_to_all():
    shares: list[float] = []
    path = corpus_file("documents/SPARSE-2024-INV-1234_borderless_table.pdf")
    reading = read_file(path, path.name, LIMITS, lambda: True, shares.append)
    assert [section.page for section in reading.sections] == [1, 2]
    assert shares == sorted(shares)
    assert shares[-1] == 1
