"""`penstock connect paperless`: documents of a paperless-ngx get their text back once, also after a kill."""

import json
import signal
from collections.abc import Iterator
from uuid import uuid4

import pypdfium2
import pytest

from tests.support.cli import Cli
from tests.support.paperless_server import TOKEN, PaperlessServer, Stored
from tests.support.provider_server import ProviderServer
from tests.support.samples import Sheet, pdf_bytes, scanned_pdf, shown, shown_lines
from tests.support.waiting import wait_until

COMMAND = ("connect", "paperless")


@pytest.fixture
def paperless() -> Iterator[PaperlessServer]:
    with PaperlessServer() as server:
        yield server


def new_pdf(heading: str, pages: int = 1) -> bytes:
    """Return a PDF unlike all others, with a heading on each page."""
    lines = [f"Number {uuid4().hex} of a letter", "that a scanner took in the morning."]
    return pdf_bytes([Sheet(shown(heading, 72, 740, 24) + shown_lines(lines)) for _ in range(pages)])


def changed(server: PaperlessServer, stored: Stored) -> int:
    return sum(number == stored.id for number, _ in server.changes)


def test_tagged_documents_get_text_title_and_another_tag(cli: Cli, paperless: PaperlessServer) -> None:
    letter = paperless.add(new_pdf("Invoice 12"), "penstock", "inbox", filename="../../etc/letter.pdf")
    second = paperless.add(new_pdf("Offer 7", pages=2), "Penstock")
    broken = paperless.add(b"no document", "penstock", filename="broken.pdf")
    other = paperless.add(new_pdf("Other"), "inbox")
    token = cli.cwd / "token"
    token.write_text(f"{TOKEN}\n")
    command = (*COMMAND, paperless.url, "--write", "text,title", "--token-file", token)

    listed = cli.run(*command, "--dry-run")
    assert listed.code == 0, listed.err
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == [str(letter.id), str(broken.id)]
    assert not paperless.changes
    second.tags = list(letter.tags[:1])

    done = cli.run(*command)
    assert done.code == 1, done.err
    assert f"#{letter.id} ../../etc/letter.pdf: written (1 page)" in done.err
    assert f"#{second.id} scan.pdf: written (2 pages)" in done.err
    assert f"#{broken.id} broken.pdf: failed: broken.pdf is not of a supported type" in done.err
    assert "3 documents: 2 written, 1 failed" in done.err or "3 documents: 1 failed, 2 written" in done.err
    assert (letter.title, second.title) == ("Invoice 12", "Offer 7")
    assert letter.content.startswith("Invoice 12\nNumber ")
    assert "<!--" not in second.content
    assert second.content.count("Offer 7") == 2
    assert paperless.names(letter) == {"inbox", "penstock-done"}
    assert paperless.names(second) == {"penstock-done"}
    assert paperless.names(broken) == {"penstock-failed"}
    assert (paperless.names(other), other.content) == ({"inbox"}, "old text")
    assert len(paperless.changes) == 3, "one request writes and moves the tag"

    again = cli.run(*command)
    assert again.code == 0, again.err
    assert len(paperless.changes) == 3
    assert paperless.tokens == {f"Token {TOKEN}"}
    secret = TOKEN.encode()
    kept = [path for path in cli.data_dir.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in kept if secret in path.read_bytes()], "the token is nowhere on disk"
    assert TOKEN not in done.err + again.err


def test_a_killed_connector_continues_and_writes_and_pays_once(
    cli: Cli, paperless: PaperlessServer, provider: ProviderServer
) -> None:
    stored = [paperless.add(new_pdf(f"Letter {number}"), "penstock") for number in range(3)]
    provider.configure({"latency_s": 1})
    cli = cli.using(PENSTOCK_PAPERLESS_TOKEN=TOKEN)
    command = (*COMMAND, paperless.url, "--provider", "single")
    running = cli.start(*command)
    wait_until(lambda: paperless.changes, 180, "the first document is written back", last=lambda: running.output)
    running.process.send_signal(signal.SIGKILL)
    running.wait()
    assert any(changed(paperless, each) == 0 for each in stored)

    continued = cli.run(*command)
    assert continued.code == 0, continued.err
    assert [changed(paperless, each) for each in stored] == [1, 1, 1]
    assert all(paperless.names(each) == {"penstock-done"} for each in stored)
    assert len(provider.records) == 3, "no page is paid for twice"
    records = [json.loads(path.read_text()) for path in (cli.data_dir / "connect").rglob("*.json")]
    assert all(record["failed"] for record in records), "no record of a finished document stays"


def test_a_second_connector_is_refused_and_the_first_takes_new_documents(cli: Cli, paperless: PaperlessServer) -> None:
    paperless.tag("penstock")
    cli = cli.using(PENSTOCK_PAPERLESS_TOKEN=TOKEN)
    running = cli.start(*COMMAND, paperless.url, "--every", "1s")
    wait_until(lambda: len(paperless.requests) > 1, 180, "it looks", last=lambda: running.output)
    second = cli.run(*COMMAND, paperless.url)
    assert (second.code, second.out) == (1, "")
    assert "another command takes the documents with the tag penstock from there" in second.err
    stored = paperless.add(new_pdf("Late"), "penstock")
    running.wait_for(f"#{stored.id} scan.pdf: written")
    running.interrupt()
    assert running.wait() == 0, running.output


@pytest.mark.slow
def test_a_scan_comes_back_as_a_searchable_version(cli: Cli, paperless: PaperlessServer) -> None:
    scan = scanned_pdf(cli.cwd / "scan.pdf", [f"Number {uuid4().hex[:6]}", "A letter from the scanner"]).read_bytes()
    stored = paperless.add(scan, "penstock")
    done = cli.using(PENSTOCK_PAPERLESS_TOKEN=TOKEN).run(*COMMAND, paperless.url, "--write", "text,pdf")
    assert done.code == 0, done.err
    assert paperless.names(stored) == {"penstock-done"}
    assert "letter from the scanner" in stored.content
    (original, _), (version, label) = (stored.files[number] for number in sorted(stored.files))
    assert (original, label) == (scan, "Penstock")
    with pypdfium2.PdfDocument(version) as document:
        assert "letter from the scanner" in document[0].get_textpage().get_text_range()
