"""Small uploads whose reading would take minutes: they are refused early, hold half of the places, and end with their
senders. Exports of long documents take no memory of their length."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from weakref import WeakSet

import psutil
import pytest

from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.export.docling import Parts
from pipeline.reading.text import office
from pipeline.reading.text.content_type import Kind
from pipeline.reading.text.units import inspect
from pipeline.settings import DocumentSettings
from tests.hostile.archives import docx, packed
from tests.hostile.test_other_keys import Api, api, database_url, settings_env
from tests.support.cli import new_pdf
from tests.support.waiting import wait_until

__all__ = ["api", "database_url", "settings_env"]
SPREADSHEET = "application/vnd.oasis.opendocument.spreadsheet"
UNENDED = '<table:table table:name="a"><table:table-cell "<table:table-cell "</table:table>'


def test_a_spreadsheet_of_damaged_xml_is_refused_before_calamine_loops_over_it(tmp_path: Path) -> None:
    sheet = tmp_path / "loop.ods"
    sheet.write_bytes(packed({"mimetype": SPREADSHEET, "content.xml": UNENDED}))
    with pytest.raises(UserError) as refused:
        inspect(sheet, sheet.name, DocumentSettings())
    assert refused.value.code == "corrupt"


def test_rows_are_not_multiplied_by_the_columns_of_the_widest() -> None:
    with pytest.raises(UnitError) as refused:
        office.convert(Kind.CSV, b"a," * 3_000 + b"\n" + b"1\n" * 2_000, "wide.csv")
    assert refused.value.code == "too_large"


def test_a_chapter_is_read_once_however_often_the_spine_names_it() -> None:
    package = '<package xmlns="http://www.idpf.org/2007/opf"><manifest>{}</manifest><spine>{}</spine></package>'
    items = "".join(f'<item id="i{n}" href="a.xhtml" media-type="text/html"/>' for n in range(200))
    spine = "".join(f'<itemref idref="i{n}"/>' * 2 for n in range(200))
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfile full-path="b"/></container>'
    )
    book = packed({"META-INF/container.xml": container, "b": package.format(items, spine), "a.xhtml": "<p>words</p>"})
    assert [text.split() for text in office.convert(Kind.EPUB, book, "spine.epub")[1]] == [["words"]]


@pytest.mark.parametrize(
    "mail",
    [
        b"From: " + b"a" * 450_000 + b"\n\nwords",
        b"To: " + b",\n ".join(b"x%d@example.org" % n for n in range(20_000)) + b"\n\nwords",
        b"From: " + b"=?utf-8?q?a?= " * 80_000 + b"\n\nwords",
        b"From: " + b"(" * 50_000 + b"\n\nwords",
        b"Content-Type: text/plain; " + b"; ".join(b"a%d=b" % n for n in range(50_000)) + b"\n\nwords",
    ],
    ids=["one word", "addresses", "encoded words", "comments", "parameters"],
)
def test_long_headers_are_decoded_and_not_parsed(mail: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("email.headerregistry.HeaderRegistry.__call__", None)
    assert office.convert(Kind.MAIL, mail, "a.eml")[1][0].endswith("words")


class _Page(dict[str, object]):
    __hash__ = object.__hash__  # type: ignore[assignment]  # a set of pages counts objects


def test_an_export_holds_one_page_at_a_time_and_a_page_has_a_bound_of_blocks() -> None:
    living = WeakSet[_Page]()

    def pages() -> Iterator[_Page]:
        for number in range(1, 4):
            block = {"type": "markdown", "text": f"{number}\n\n" * 30_000, "bbox": None}
            page = _Page(page=number, page_source=number, width=None, height=None, blocks=[block])
            living.add(page)
            yield page

    blocks = 0
    for part in Parts(pages()):
        blocks += len(part.items)
        assert len(living) <= 2
    assert blocks == 3 * 20_001


@pytest.fixture
def senders(api: Api, tmp_path: Path) -> Iterator[list[socket.socket]]:
    """Four clients of one key that have sent a document which is read until its time is up, and do not read on."""
    nested = tmp_path / "nested.docx"
    docx("<w:tbl><w:tr><w:tc>" * 20_000 + "</w:tc></w:tr></w:tbl>" * 20_000)(nested)
    with ExitStack() as held:
        clients = []
        for number in range(4):
            client = held.enter_context(socket.create_connection(("127.0.0.1", api.port)))
            client.sendall(_upload(api.attacker, f"nested-{number}.docx", nested.read_bytes() + bytes(number)))
            clients.append(client)
        yield clients


@pytest.mark.slow
def test_inspections_of_one_key_delay_no_other_and_end_with_their_clients(
    api: Api, senders: list[socket.socket], tmp_path: Path
) -> None:
    wait_until(lambda: len(_busy(api)) == 2, 120, "one key has half of the places")
    with socket.create_connection(("127.0.0.1", api.port)) as other:
        other.sendall(_upload(api.other, "good.pdf", new_pdf(tmp_path / "good.pdf").read_bytes()))
        other.settimeout(120)
        assert other.recv(12) == b"HTTP/1.1 202"
    busy = _busy(api)
    assert len(busy) == 2, "the hostile files are still being read"
    for client in senders:
        client.close()
    wait_until(lambda: not any(map(psutil.pid_exists, busy)), 20, "no child reads for a client that has left")


def _upload(key: str, name: str, content: bytes) -> bytes:
    head = f"POST /api/v1/documents HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {key}\r\nx-filename: {name}\r\n"
    return f"{head}content-type: application/octet-stream\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


def _busy(api: Api) -> list[int]:
    """Return the ids of the API's children that have used two seconds of a processor: importing takes less."""
    servers = api.cli.processes()
    children = {child for server in servers for child in server.children(recursive=True)} - {*servers}
    return [child.pid for child in children if sum(child.cpu_times()[:2]) > 2]
