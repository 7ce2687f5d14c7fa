"""A stack whose names, titles and texts contain hostile HTML."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.browser.payloads import MARKDOWN, PAYLOADS
from tests.support.cli import Cli, environment, new_pdf, provider_settings
from tests.support.provider_server import ProviderServer, Record
from tests.support.redis_server import free_port
from tests.support.samples import picture_of
from tests.support.songs import answer
from tests.support.subsonic_server import SubsonicServer, synthetic

DEAD_PORT = 1
"""An address without a server."""
XSS = "<img src=x onerror=hurt(0)>"


@dataclass
class Site:
    """A running stack with its API. `ids`: the ids of its objects, by kind."""

    cli: Cli
    base: str
    provider: ProviderServer
    ids: dict[str, Any]

    def call(self, method: str, path: str, body: Any = None, raw: bytes | None = None, **headers: str) -> Any:
        """Call the API, and return the JSON of its answer. Raises for errors, with their text."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        kind = {} if raw is not None else {"Content-Type": "application/json"}
        request = Request(f"{self.base}/api/v1{path}", data, {**kind, **headers}, method=method)
        try:
            with urlopen(request, timeout=60) as reply:
                text = reply.read()
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error
        return json.loads(text) if text else None

    def url(self, path: str) -> str:
        """Return the address of a console page."""
        return f"{self.base}/console{path}"

    def convert(self, path: Path, name: str = "", wait: int = 60, **options: str) -> Any:
        """Submit a file under this name."""
        query = "&".join(f"{key}={quote(value)}" for key, value in {"wait": str(wait), **options}.items())
        headers = {"Content-Type": "application/pdf", "X-Filename": quote(name or path.name)}
        return self.call("POST", f"/documents?{query}", raw=path.read_bytes(), **headers)


def screen_picture(words: Sequence[str]) -> bytes:
    """Return a screen with these lines as PNG."""
    buffer = BytesIO()
    picture_of(words, (1000, 640)).save(buffer, "PNG")
    return buffer.getvalue()


def song(number: int) -> dict[str, Any]:
    """Return a song with hostile tags."""
    return synthetic(number) | {"title": f"{PAYLOADS[number % len(PAYLOADS)]} {number}", "artist": XSS, "album": XSS}


def _describe(record: Record) -> str:
    # A table without its end makes a reply incomplete.
    return f"# Minutes of the pump house\n\n{MARKDOWN.replace('<table>', '')}"


@contextmanager
def opened(root: Path) -> Iterator[Site]:
    """`penstock up` on a data folder below `root`, with a provider `ai` that answers with hostile Markdown."""
    data, port = root / "data", free_port()
    with (
        ProviderServer(api_key="secret-key", picture_answer=_describe, answer=answer) as provider,
        SubsonicServer(len(PAYLOADS)) as music,
    ):
        music.library.song = song
        settings = provider_settings(provider.base_url) | {
            "PENSTOCK_API__WITH_STACK": "true",
            "PENSTOCK_API__PORT": str(port),
            "PENSTOCK_API__REQUESTS_PER_MIN": "0",
            "PENSTOCK_API__STREAMS_PER_KEY": "100",
            "PENSTOCK_WEBHOOKS__ALLOW_PRIVATE": "true",
            "PENSTOCK_SCREENSHOTS__BATCH_SIZE": "1",
            "PENSTOCK_MUSIC__SERVER_URL": music.url,
            "PENSTOCK_MUSIC__USER": "ann",
            "PENSTOCK_MUSIC__PROVIDER": "ai",
            "PENSTOCK_MUSIC__PASSWORD": "sesame",
            "PENSTOCK_PROVIDERS__AI__PRICES": '{"vision-1": {"input": 1, "output": 4}}',
        }
        cli = Cli(data, root, environment(data, **settings))
        up = cli.start("up")
        site = Site(cli, f"http://127.0.0.1:{port}", provider, {})
        try:
            up.wait_for("Penstock is up")
            reachable(site.base)
            _fill(site, root)
            yield site
            up.interrupt()
            assert up.wait() == 0, up.output
        finally:
            cli.kill_everything()


def reachable(base: str) -> None:
    """Wait until the API answers at this address."""
    for _ in range(300):
        try:
            urlopen(f"{base}/healthz", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the API does not answer")


def _fill(site: Site, root: Path) -> None:
    """Add data of every flow."""
    ids = site.ids
    hook = {"url": f"http://127.0.0.1:{DEAD_PORT}/?a=%3Cscript%3E", "description": XSS, "types": ["document.*"]}
    site.call("POST", "/webhooks/endpoints", hook)
    ids["documents"] = []
    for number, payload in enumerate(PAYLOADS):
        path = new_pdf(root / f"{number}.pdf", pages=2 if number < 3 else 1)
        provider = "ai" if number == 0 else "local"
        name = f"{payload.replace('/', '∕')[:80]}.pdf"
        document = site.convert(path, name, provider=provider, wait=30 if number < 3 else 0)
        if number >= 3:
            continue
        assert document["status"] == "COMPLETED", document
        ids["documents"].append(document["id"])
    for number, title in enumerate(("Terminal", XSS, "Pump report")):
        words = [title, f"Valve number {number}", f"Pressure {17 + number} bar", "Turbine room " * (number + 1)]
        query = f"?app={quote(XSS if number == 1 else 'Editor')}&title={quote(title)}"
        intake = site.call("POST", f"/screenshots{query}", raw=screen_picture(words), **{"Content-Type": "image/png"})
        ids.setdefault("frames", []).append(intake["id"])
    ids["base"] = site.call("POST", "/knowledge-bases", {"name": f"Pumps {XSS}"})["id"]
    note = {"type": "note", "data": {"name": XSS, "content": MARKDOWN}}
    site.call("POST", f"/knowledge-bases/{ids['base']}/items", note)
    site.call("POST", "/music/sync")
    site.call("POST", "/keys", {"name": XSS, "scope": "read"})
    reason = {"reason": XSS}
    site.call("PUT", "/settings/queue_concurrency", {"value": 4, **reason})
