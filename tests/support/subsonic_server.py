"""A real small Subsonic server that follows its script and records its requests."""

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self, cast
from urllib.parse import parse_qs, urlsplit

Songs = Callable[[int], dict[str, Any]]
FaultKind = Literal["html", "error", "status", "malformed", "close", "hang", "cut"]


@dataclass(frozen=True)
class Fault:
    """A fault in place of a good answer. `error`: a failure with `code`; `cut`: half of the page."""

    kind: FaultKind
    code: int = 0
    status: int = 500


@dataclass
class Library:
    """The server's songs. `count`: the number that it reports instead of the true one."""

    total: int = 0
    song: Songs = field(default_factory=lambda: synthetic)
    hidden: set[int] = field(default_factory=set)
    count: int | None = None
    scanning: bool = False
    pages: bool = True
    knows_count: bool = True

    def listed(self, offset: int, size: int) -> list[dict[str, Any]]:
        if not self.hidden:
            return [self.song(number) for number in range(offset, min(offset + size, self.total))]
        numbers = [number for number in range(self.total) if number not in self.hidden]
        return [self.song(number) for number in numbers[offset : offset + size]]


def synthetic(number: int) -> dict[str, Any]:
    """Return song `number` of an endless library."""
    return {
        "id": f"s{number:06}",
        "isDir": False,
        "title": f"Song {number}",
        "artist": f"Artist {number % 97}",
        "album": f"Album {number // 12}",
        "genre": "Ambient",
        "year": 1970 + number % 50,
        "duration": 120 + number % 200,
        "path": f"Artist {number % 97}/Album {number // 12}/{number}.flac",
        "musicBrainzId": f"00000000-0000-0000-0000-{number:012}",
    }


class SubsonicServer:
    """A context manager: leaving it ends every connection."""

    def __init__(self, total: int = 0, *, user: str = "ann", password: str = "sesame") -> None:
        self.library = Library(total)
        self.user = user
        self.password = password
        self.faults: deque[Fault | None] = deque()
        self.requests: list[str] = []
        """The requested paths with their queries, as in a log."""
        self.stopping = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.subsonic = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def calls(self, method: str) -> int:
        return sum(f"/rest/{method}.view" in request for request in self.requests)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, query: dict[str, str]) -> dict[str, Any]:
        """Return the envelope's content."""
        token = hashlib.md5((self.password + query.get("s", "")).encode()).hexdigest()
        if query.get("u") != self.user or query.get("t") != token:
            return _failure(40, "Wrong username or password")
        if method == "ping":
            return _ok()
        if method == "getScanStatus" and self.library.knows_count:
            count = self.library.total - len(self.library.hidden) if self.library.count is None else self.library.count
            return _ok(scanStatus={"scanning": self.library.scanning, "count": count, "lastScan": "2025-01-01"})
        if method == "search3":
            offset = int(query["songOffset"]) if self.library.pages else 0
            return _ok(searchResult3={"song": self.library.listed(offset, int(query["songCount"]))})
        return _failure(70, "not found")


def _ok(**content: Any) -> dict[str, Any]:
    return {"status": "ok", "version": "1.16.1", "type": "navidrome", "serverVersion": "0.58", **content}


def _failure(code: int, message: str) -> dict[str, Any]:
    return {"status": "failed", "version": "1.16.1", "error": {"code": code, "message": message}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""

    def do_GET(self) -> None:
        server = cast("SubsonicServer", self.server.subsonic)  # type: ignore[attr-defined]
        server.requests.append(self.path)
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        method = url.path.removeprefix("/rest/").removesuffix(".view")
        fault = server.faults.popleft() if server.faults else None
        reply = server.answer(method, query)
        if fault is None:
            self._json(reply)
        elif fault.kind == "html":
            self._send(200, b"<!doctype html><title>Sign in</title>", "text/html")
        elif fault.kind == "status":
            self._send(fault.status, b"oops", "text/plain")
        elif fault.kind == "malformed":
            self._send(200, b'{"subsonic-response": {"sta', "application/json")
        elif fault.kind == "error":
            self._json(_failure(fault.code, "scripted"))
        elif fault.kind == "cut":
            songs = reply["searchResult3"]["song"]
            self._json(_ok(searchResult3={"song": songs[: len(songs) // 2]}))
        else:
            if fault.kind == "hang":
                server.stopping.wait(20)
            self.close_connection = True

    def _json(self, reply: dict[str, Any]) -> None:
        self._send(200, json.dumps({"subsonic-response": reply}).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
