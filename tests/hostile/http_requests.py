"""Hostile requests, as bytes on a connection."""

from dataclasses import dataclass

from tests.hostile.words import MARK

_HEAD = "Host: 127.0.0.1\r\nConnection: close\r\n"


@dataclass(frozen=True)
class Request:
    """A hostile request. `statuses`: the allowed answers; 0: the server closes the connection."""

    name: str
    data: bytes
    statuses: frozenset[int]


def _get(path: str, head: str = _HEAD) -> bytes:
    return f"GET {path} HTTP/1.1\r\n{head}\r\n".encode("utf-8", "surrogateescape")


def _post(path: str, body: bytes, kind: str = "application/json", head: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\n{_HEAD}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode()
        + body
    )


def _parts(count: int) -> bytes:
    return (
        b"".join(b'--x\r\nContent-Disposition: form-data; name="a%d"\r\n\r\n1\r\n' % n for n in range(count))
        + b"--x--\r\n"
    )


def _file(name: bytes, content: bytes) -> bytes:
    return (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="'
        + name
        + b'"\r\n\r\n'
        + content
        + b"\r\n--x--\r\n"
    )


_FORM = "multipart/form-data; boundary=x"
_REFUSED = frozenset({0, 400, 401, 403, 404, 405, 406, 409, 411, 413, 414, 415, 421, 422, 429, 431})
_OK = _REFUSED | {200, 202}
_HOST = "Host: {}\r\nConnection: close\r\n"

REQUESTS = [
    Request("another host", _get("/api/v1/documents", _HOST.format("rebound.example")), frozenset({400, 403, 421})),
    Request("no host", _get("/api/v1/documents", "Connection: close\r\n"), frozenset({400, 403, 421})),
    Request("two hosts", _get("/api/v1/documents", _HEAD + "Host: rebound.example\r\n"), frozenset({0, 400, 403, 421})),
    Request(
        "another origin", _post("/api/v1/documents", b"{}", head="Origin: http://rebound.example\r\n"), frozenset({403})
    ),
    Request(
        "a form of another page", _post("/api/v1/documents", b"a=b", "text/plain", "Origin: null\r\n"), frozenset({403})
    ),
    Request("a path upwards", _get("/api/v1/documents/..%2f..%2f..%2fetc%2fpasswd"), _REFUSED),
    Request("a path with zeros", _get("/api/v1/documents/%00"), _REFUSED),
    Request("a path of half letters", _get("/api/v1/documents/%ED%A0%80"), _REFUSED),
    Request("a path of 60,000 letters", _get("/api/v1/documents/" + "a" * 60_000), _REFUSED),
    Request("a path of colours", _get("/api/v1/documents/%1b%5b38;5;213m"), _REFUSED),
    Request("a limit without end", _get("/api/v1/documents?limit=" + "9" * 400), _REFUSED),
    Request("a limit below none", _get("/api/v1/documents?limit=-1"), _REFUSED),
    Request("a cursor of nothing", _get("/api/v1/documents?cursor=%00%ff"), _REFUSED),
    Request("a cursor of lists", _get("/api/v1/documents?cursor=" + "W1tb" * 900), _REFUSED),
    Request("a query of wildcards", _get("/api/v1/documents/search?q=x&name=" + "%25" * 9_000), _REFUSED),
    Request("a query of quotes", _get("/api/v1/documents/search?q=" + "%22" * 3_001), _REFUSED),
    Request("the same value often", _get("/api/v1/documents?" + "status=FAILED&" * 3_000), _OK),
    Request(
        "heads without end", _get("/api/v1/documents", _HEAD + "".join(f"X-{n}: y\r\n" for n in range(5_000))), _OK
    ),
    Request("a head of a megabyte", _get("/api/v1/documents", _HEAD + "X: " + "y" * 2**20 + "\r\n"), _REFUSED),
    Request(
        "a key of a megabyte",
        _get("/api/v1/documents", _HEAD + "Authorization: Bearer " + "y" * 20_000 + "\r\n"),
        _REFUSED,
    ),
    Request("a key of colours", _get("/api/v1/documents", _HEAD + f"X-Api-Key: {MARK}\r\n"), _REFUSED),
    Request("a length below none", _get("/api/v1/documents", _HEAD + "Content-Length: -5\r\n"), _OK),
    Request(
        "two lengths",
        b"POST /api/v1/documents HTTP/1.1\r\n"
        + _HEAD.encode()
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        _REFUSED,
    ),
    Request(
        "a chunk without end",
        b"POST /api/v1/documents HTTP/1.1\r\n"
        + _HEAD.encode()
        + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        _REFUSED,
    ),
    Request("no HTTP", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"\0" * 99, _REFUSED),
    Request("lists in lists", _post("/api/v1/knowledge-bases", b"[" * 500_000), _REFUSED),
    Request("a number of 5,000 digits", _post("/api/v1/knowledge-bases", b'{"name":' + b"9" * 5_000 + b"}"), _REFUSED),
    Request("a name of half letters", _post("/api/v1/knowledge-bases", b'{"name":"\\ud800"}'), _REFUSED),
    Request("a name with zeros", _post("/api/v1/knowledge-bases", b'{"name":"a\\u0000b"}'), _REFUSED),
    Request("a name of colours", _post("/api/v1/knowledge-bases", b'{"name":"\\u001b[38;5;213m"}'), _REFUSED),
    Request(
        "another letter code",
        _post("/api/v1/knowledge-bases", "{}".encode("utf-16"), "application/json; charset=utf-16"),
        _REFUSED,
    ),
    Request("a hundred thousand parts", _post("/api/v1/documents", _parts(100_000), _FORM), _REFUSED),
    Request("parts without an end", _post("/api/v1/documents", b"--x\r\n" * 9_000, _FORM), _REFUSED),
    Request(
        "a boundary of a mile",
        _post("/api/v1/documents", b"x", "multipart/form-data; boundary=" + "x" * 9_000),
        _REFUSED,
    ),
    Request("a file that is none", _post("/api/v1/documents", _file(b"../../etc/x.pdf", b"%PDF-1.4"), _FORM), _REFUSED),
    Request(
        "a file of colours", _post("/api/v1/documents", _file(b"\x1b[38;5;213m\r\n.pdf", b"%PDF-1.4"), _FORM), _REFUSED
    ),
    Request(
        "a source of files",
        _post("/v1/convert/source", b'{"sources":[{"kind":"http","url":"file:///etc/passwd"}]}'),
        _REFUSED,
    ),
    Request(
        "a source of this machine",
        _post("/v1/convert/source", b'{"sources":[{"kind":"http","url":"http://169.254.169.254/"}]}'),
        _REFUSED,
    ),
    Request(
        "a source of no base64",
        _post("/v1/convert/source", b'{"sources":[{"kind":"file","base64_string":"***","filename":"../x"}]}'),
        _REFUSED,
    ),
    Request(
        "a loader's file name",
        _post("/process", b"x", "application/pdf", "X-Filename: %00%1b%2f..%2f\r\n").replace(b"POST", b"PUT", 1),
        _REFUSED,
    ),
    Request("a method unknown", _get("/api/v1/documents").replace(b"GET", b"DELETE", 1), _REFUSED),
    Request("a proxy's request", _get("http://169.254.169.254/latest"), _REFUSED),
]
