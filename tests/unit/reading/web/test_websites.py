"""Web pages and sitemaps become text. A sitemap stays on its site, and ends."""

import gzip
import ipaddress
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, SitemapLimits, Unwanted
from pipeline.reading.text.sections import Reading
from pipeline.reading.web.websites import read_sitemap, read_url
from tests.support.corpus import corpus_file
from tests.support.web_server import Request, WebServer, html, redirect, xml

LIMITS = Limits()
LOCAL = [ipaddress.ip_network("127.0.0.1/32")]
PARAGRAPH = "<p>" + "Penstock moves pages through steps that are slow and fail. " * 6 + "</p>"
LETTERS = "abcdefghij"
ENTITIES = "".join(
    "<!ENTITY " + letter + ' "' + f"&{before};" * 10 + '">' for before, letter in itertools.pairwise(LETTERS)
)
LAUGHS = f'<!DOCTYPE urlset [<!ENTITY a "lol">{ENTITIES}]><urlset><url><loc>&j;</loc></url></urlset>'


def resolve(host: str, port: int) -> Sequence[str]:
    return {"private.test": ["10.0.0.1"]}.get(host, ["127.0.0.1"])


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


@pytest.fixture(autouse=True, scope="module")
def _children_end() -> Iterator[None]:
    yield
    child.close_idle()


def page(title: str) -> str:
    return (
        f"<html><head><title>{title}</title></head><body><article><h1>{title}</h1>{PARAGRAPH}</article></body></html>"
    )


def sitemap(*addresses: str) -> str:
    return f"<urlset>{''.join(f'<url><loc>{address}</loc></url>' for address in addresses)}</urlset>"


def index(*addresses: str) -> str:
    listed = "".join(f"<sitemap><loc>{address}</loc></sitemap>" for address in addresses)
    return f'<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{listed}</sitemapindex>'


def follow(url: str, limits: SitemapLimits | None = None) -> Reading:
    chosen = replace(LIMITS, sitemap=limits or LIMITS.sitemap)
    return read_sitemap(url, chosen, lambda: True, allow_private=LOCAL, resolve=resolve)


def failure(url: str, limits: SitemapLimits | None = None) -> UnitError:
    with pytest.raises(UnitError) as caught:
        follow(url, limits)
    return caught.value


def read(url: str) -> Reading:
    return read_url(url, LIMITS, lambda: True, allow_private=LOCAL, resolve=resolve)


def test_of_a_web_page_the_article_is_read(server: WebServer):
    server.pages["/"] = lambda request: request.answer(
        corpus_file("knowledge/test_blog.html").read_bytes(), Content_Type="text/html"
    )
    reading = read(server.url("/"))
    assert reading.title.startswith("Does Model and Inference Parameter Matter")
    assert "Large language models (LLMs) are powerful" in reading.text
    assert "Skip to main content" not in reading.text
    assert [section.source for section in reading.sections] == [server.url("/")]


def test_a_page_without_an_article_is_read_as_a_whole(server: WebServer):
    server.pages["/"] = html("<html><title>Links</title><body><nav><a href='/a'>One thing</a></nav></body></html>")
    reading = read(server.url("/"))
    assert (reading.title, "One thing" in reading.text) == ("Links", True)


def test_an_address_of_a_file_is_read_as_that(server: WebServer):
    for name, kind, says in (
        ("test.pdf", "application/pdf", "Introduction"),
        ("test_mskanji.csv", "text/csv", "髙橋淳"),
        ("test.docx", "application/octet-stream", "AutoGen"),
    ):
        data = corpus_file(f"knowledge/{name}").read_bytes()
        server.pages["/file"] = lambda request, data=data, kind=kind: request.answer(data, Content_Type=kind)
        reading = read(server.url("/file"))
        assert says in reading.text
        assert {section.source for section in reading.sections} == {server.url("/file")}


def test_the_encoding_that_a_server_names_is_used(server: WebServer):
    body = page("Überschrift").encode("iso-8859-1")
    server.pages["/"] = lambda request: request.answer(body, Content_Type="text/html; charset=ISO-8859-1")
    assert read(server.url("/")).title == "Überschrift"


def test_the_pages_of_indexes_and_packed_sitemaps_are_read_once(server: WebServer):
    server.pages["/index.xml"] = xml(index(server.url("/a.xml"), server.url("/b.xml.gz"), server.url("/index.xml")))
    server.pages["/a.xml"] = xml(sitemap(server.url("/one"), server.url("/two"), server.url("/one#again")))
    packed = gzip.compress(sitemap(server.url("/two"), server.url("/three")).encode())
    server.pages["/b.xml.gz"] = lambda request: request.answer(packed, Content_Type="application/gzip")
    for name in ("one", "two", "three"):
        server.pages[f"/{name}"] = html(page(f"Page {name}"))
    shares: list[float] = []
    listing = read_sitemap(
        server.url("/index.xml"), LIMITS, lambda: True, shares.append, allow_private=LOCAL, resolve=resolve
    )
    assert [section.source for section in listing.sections] == [
        server.url(f"/{name}") for name in ("one", "two", "three")
    ]
    assert listing.sections[0].text.startswith("# Page one")
    assert listing.warnings == []
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_pages_elsewhere_and_pages_that_fail_are_warnings(server: WebServer):
    server.pages["/s.xml"] = xml(
        sitemap(server.url("/one"), server.url("/gone"), server.url("/x", "other.test"), "file:///etc/passwd")
    )
    server.pages["/one"] = html(page("One"))
    listing = follow(server.url("/s.xml"))
    assert len(listing.sections) == 1
    assert len(listing.warnings) == 2
    assert "2 addresses" in listing.warnings[0]
    assert "404" in listing.warnings[1]


def test_a_page_whose_server_fails_for_a_moment_is_read_after_the_others(server: WebServer):
    def failing(request: Request) -> None:
        server.pages["/a"] = html(page("Page a"))
        request.answer(status="503 Service Unavailable", Retry_After="0")

    server.pages |= {"/s.xml": xml(sitemap(server.url("/a"), server.url("/b"))), "/a": failing}
    server.pages["/b"] = html(page("Page b"))
    listing = follow(server.url("/s.xml"))
    assert [section.source[-2:] for section in listing.sections] == ["/a", "/b"], "in the order of the sitemap"
    assert listing.warnings == []
    assert [request.target for request in server.seen] == ["/s.xml", "/a", "/b", "/a"]


def test_a_sitemap_whose_pages_all_fail_fails_like_them(server: WebServer):
    server.pages["/s.xml"] = xml(sitemap(server.url("/a"), server.url("/b")))
    server.pages["/a"] = server.pages["/b"] = redirect("http://private.test/")
    error = failure(server.url("/s.xml"))
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, "address_refused")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (LAUGHS, "bad_sitemap"),
        ("<urlset><url>", "bad_sitemap"),
        (page("other"), "bad_sitemap"),
        ("", "bad_sitemap"),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><urlset/>', "bad_sitemap"),
        ("<urlset/>", "no_pages"),
        ("<urlset>" + "<a>" * 100_000, "no_pages"),
    ],
    ids=["laughs", "cut", "html", "empty", "external", "nothing", "deep"],
)
def test_an_invalid_sitemap_is_refused(server: WebServer, body: str, code: str):
    server.pages["/s.xml"] = xml(body)
    error = failure(server.url("/s.xml"))
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, code)


def test_a_sitemap_is_read_by_a_child_since_its_xml_may_be_made_to_fill_memory(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("pipeline.reading.web.sitemap.parse", lambda *_: pytest.fail("read in this process"))
    server.pages["/s.xml"] = xml(sitemap(server.url("/one")))
    server.pages["/one"] = html(page("one"))
    assert follow(server.url("/s.xml")).sections


def test_a_sitemap_that_unpacks_to_too_much_is_refused(server: WebServer):
    bomb = gzip.compress(b"<urlset>" + b" " * 30_000_000)
    server.pages["/s.xml.gz"] = lambda request: request.answer(bomb)
    assert failure(server.url("/s.xml.gz")).code == "too_large"


def test_more_pages_and_deeper_indexes_than_allowed_are_left_out(server: WebServer):
    server.pages["/0.xml"] = xml(index(server.url("/1.xml")))
    server.pages["/1.xml"] = xml(index(server.url("/2.xml")))
    server.pages["/s.xml"] = xml(sitemap(*(server.url(f"/{n}") for n in range(5))))
    for number in range(5):
        server.pages[f"/{number}"] = html(page(f"Page {number}"))
    listing = follow(server.url("/s.xml"), SitemapLimits(max_pages=2))
    assert len(listing.sections) == 2
    assert "first 2" in listing.warnings[-1]
    assert failure(server.url("/0.xml"), SitemapLimits(max_depth=1)).code == "no_pages"


def test_following_a_sitemap_stops_between_pages_when_unwanted(server: WebServer):
    server.pages["/s.xml"] = xml(sitemap(*(server.url(f"/{n}") for n in range(5))))
    for number in range(5):
        server.pages[f"/{number}"] = html(page(f"Page {number}"))
    with pytest.raises(Unwanted):
        read_sitemap(server.url("/s.xml"), LIMITS, lambda: len(server.seen) < 3, allow_private=LOCAL, resolve=resolve)
    assert len(server.seen) <= 4
