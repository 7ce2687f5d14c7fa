"""What people, settings and requests write in a line: addresses, ranges, moments, cursors, queries."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import typer
from pydantic import ValidationError

from pipeline.engine import limits, live_settings, retry
from pipeline.engine.errors import UnitError, UserError
from pipeline.flows.screenshots.frames import foreground
from pipeline.flows.screenshots.rules.batches import is_source_key
from pipeline.flows.webhooks.service import check_url
from pipeline.interfaces.cli import times
from pipeline.interfaces.compatibility.docling import options, task
from pipeline.interfaces.http import pages
from pipeline.operations.refusal import Refused
from pipeline.providers import errors
from pipeline.reading.files import source
from pipeline.reading.web import addresses, fetch
from pipeline.settings import Settings, quota
from pipeline.settings.names import Speller
from pipeline.settings.providers import ProviderProfile, gateway_urls
from pipeline.settings.redis_url import RedisUrl, RedisUrlError
from pipeline.storage import fulltext, fusion
from tests.fuzz.target import Target, is_storable, json_seeds, text_of, texts

NOW = datetime(2026, 11, 22, tzinfo=UTC)
_PAGES = 30


def _redis_url(data: bytes) -> None:
    text = text_of(data)
    url, message = None, ""
    try:
        url = RedisUrl.parse(text)
    except RedisUrlError as error:
        message = str(error)
    assert "secret" not in message
    assert url is None or url.celery.isprintable()


def _page_range(data: bytes) -> None:
    numbers = source.parse_page_range(text_of(data), _PAGES)
    assert numbers == sorted(set(numbers))
    assert all(1 <= number <= _PAGES for number in numbers)


def _file_name(data: bytes) -> None:
    name = source.safe_filename(text_of(data))
    assert name
    assert len(name.encode()) <= source.MAX_NAME_BYTES
    assert name not in {".", ".."}
    assert name.isprintable()
    assert not set(name) & set('/\\<>:"|?*')
    assert source.safe_filename(name) == name


def _cursor(data: bytes) -> None:
    text = text_of(data)
    for types in ((int,), (str, datetime), (float, int), (datetime, str)):
        with suppress(Refused):
            key = pages.decode(text, *types)
            if key is not None:
                assert all(is_storable(part) for part in key if isinstance(part, str))
                assert pages.decode(pages.encode(*key), *types) == key


def _moment(data: bytes) -> None:
    text = text_of(data)
    zone = quota.zone("UTC-03:30")
    for parse in (lambda: times.moment(text, zone, now=NOW), lambda: times.duration_s(text)):
        with suppress(typer.BadParameter, UserError):
            parse()
    with suppress(ValueError):
        windows = limits.parse_windows(text)
        assert limits.parse_windows(limits.format_windows(windows)) == windows
    for part in text.split(","):
        with suppress(ValueError):
            quota.next_reset(NOW, datetime.min.time(), quota.zone(part))


def _wait(data: bytes) -> None:
    """Values of `Retry-After` and of what says the same in bodies."""
    text = text_of(data)
    wait = retry.seconds_or_date(text, NOW)
    assert wait is None or isinstance(wait, float)
    wait_s = errors.retry_after_s({"retry-after": text}, errors.ErrorFacts(message=text), NOW, limited=True)
    assert wait_s is None or 0 <= wait_s <= errors.MAX_WAIT_S
    duration = errors.duration_s(text)
    assert duration is None or isinstance(duration, float)


def _address(data: bytes) -> None:
    text = text_of(data)
    with suppress(UserError):
        check_url(text)
    with suppress(ValueError):
        assert gateway_urls(text)
    with suppress(UnitError):
        addresses.checked("host", [text], [])
    url = fetch.parse_url(text)
    assert url.scheme in {"http", "https"}
    assert fetch.parse_url(str(url)) == url
    assert url.host
    fetch._redirected(fetch.parse_url("http://example.org/a?b"), text)


def _query(data: bytes) -> None:
    words, _, text = text_of(data).partition("\n")
    for begin, end in fusion.spots(text, words):
        assert 0 <= begin < end <= len(text)
    assert len(fusion.excerpt(text, words, 40)) <= 42
    fulltext.terms(words)
    for query in (words, *fulltext.looser(words)):
        terms = query.split()
        # Only letters, digits and our own signs: nothing of a query is syntax to the database.
        assert "\0" not in fulltext._fts5(terms, " AND ")
        assert "\\" not in fulltext._tsquery(terms, " & ")


def _docling_options(data: bytes) -> None:
    text = text_of(data)
    fields = {name: [line] for name, line in (line.partition("=")[::2] for line in text.split("\n"))}
    with suppress(Refused):
        request, _ = options.of_form(fields)
        assert isinstance(request.pages, str)
    with suppress(Refused):
        task.Task.parse(text.partition("\n")[0])
    with suppress(ValidationError):
        options.ConvertRequest.model_validate_json(data)


def _window(data: bytes) -> None:
    window = foreground.of_xprop(data.decode("utf-8", "replace"))
    assert isinstance(window.app + window.title, str)
    is_source_key(text_of(data))


_SPELLER = Speller(Settings, ("music",))


def _settings(data: bytes) -> None:
    """A variable of the environment, its name and its value; and a table of a file."""
    name, _, value = text_of(data).partition("=")
    for sentence in _SPELLER.in_environment({f"PENSTOCK_{name}": value}):
        assert isinstance(sentence, str)
    with suppress(ValueError):
        table = json.loads(value)
        if isinstance(table, dict):
            list(_SPELLER.in_file(table, "penstock.toml"))
    with suppress(ValidationError):
        ProviderProfile.model_validate({name.lower(): value})
    for read in _LIVE:
        with suppress(UserError, ValueError):
            read(value)


_LIVE: tuple[Callable[[str], object], ...] = (live_settings.whole(0, 10), live_settings.amount, live_settings.windows)

_MOMENTS = (
    "2d",
    "3h",
    "90m",
    "2026-03-01T14:30",
    "10/s, 500/min",
    "100000 tokens/2.5h",
    "UTC+8",
    "Europe/Berlin",
    "90s",
)
_WAITS = ("34s", "1h2m3.5s", "120ms", "Wed, 21 Oct 2026 07:28:00 GMT", "please try again in 6m0s", "-1", "1e400", "nan")
_URLS = (
    "http://user:pw@example.org:80/a?b#c",
    "wss://host,ws://other:8485",
    "::ffff:127.0.0.1",
    "https://[::1]/",
    "//x",
)
_REDIS = (
    "redis://:secret@host:6379/0",
    "rediss://u:secret@[::1]:6379/0?ssl_cert_reqs=none",
    "unix:///run/redis.sock?db=0",
    "sentinel://a:26379,b:26379/0?master=m&sentinel_password=secret",
    "sentinel://a:1/0;sentinel://b:2/0?master=m",
)
_FORM = "to_formats=md,json\npage_range=1-3\nprovider=vlm\ndocument_timeout=1e9\ntarget_type=zip"
_REQUEST = {
    "options": {"page_range": [1, 3], "to_formats": ["md"]},
    "target": {"kind": "zip"},
    "sources": [{"kind": "file", "base64_string": "AAAA", "filename": "a"}, {"kind": "http", "url": "http://x"}],
}
_XPROP = 'WM_CLASS(STRING) = "code", "Code"\n_NET_WM_NAME(UTF8_STRING) = "a \\303\\251 \\" b"\nWM_NAME = "x"'


def _cursors() -> list[bytes]:
    keys = ((5,), ("a", NOW), (0.5, 7), (NOW - timedelta(days=1), "x"))
    return [pages.encode(*key).encode() for key in keys]


TARGETS = (
    Target("redis-url", _redis_url, (), texts(*_REDIS), ("://", "@", "%2F", "?", "&", ";", "ssl=true")),
    Target(
        "page-range", _page_range, (UserError,), texts("1-5,7", "3-", "-4", " 2 - 3 ,30"), (",", "-", "٣", "999999999")
    ),
    Target(
        "file-name",
        _file_name,
        (),
        texts("../../a b.pdf", "C:\\x\\y.tar.gz", "\u202efdp.exe", "." * 9, "é" * 150 + ".pdf"),
        ("/", "\\", ".", "\0", "\u200b"),
    ),
    Target("cursor", _cursor, (), _cursors, ("=", "-", "_", "W")),
    Target("moment", _moment, (), texts(*_MOMENTS), ("9" * 30, "w", "min", "/", "tokens", "UTC", "..", "+")),
    Target("wait", _wait, (), texts(*_WAITS), ("9" * 400, "GMT", "ms", "9999", "-", "e")),
    Target(
        "address", _address, (UnitError,), texts(*_URLS), ("://", "@", ":", "[", "]", "%", "\\", "..", "xn--", "。")
    ),
    Target(
        "query",
        _query,
        (),
        texts("wort größe\nEin Wort und die Größe", "北京 大学\n北京大学在北京", 'a* "b" -c\na b c'),
        ("'", '"', "*", ":", "|", "ﬁ", "ß", "İ"),
    ),
    Target(
        "docling-options",
        _docling_options,
        (),
        lambda: [_FORM.encode(), *json_seeds(_REQUEST)()],
        ("=", "page_range", "\n"),
    ),
    Target("window", _window, (), texts(_XPROP), ('\\"', "\\777", "\\", '"', " = ")),
    Target(
        "settings",
        _settings,
        (),
        texts(
            "DOCUMENTS__MAX_PAGES=5", 'PROVIDERS={"a": {"modle": 1}}', "LIMITS=10/s", "QUOTA_ZONE=UTC+8", "MAX_PAGS=1"
        ),
        ("__", "PROVIDERS__", "{", '"', "inf"),
    ),
)
