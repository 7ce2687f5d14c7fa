"""Uploads: multipart forms, or a file as the body, streamed to disk with their SHA-256; memory stays flat.

Starlette would spool into its own temporary files, and copy. This module writes a file once, into the folder where an
operation moves it from, and removes it with the request otherwise.
"""

import errno
import hashlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import python_multipart
from anyio.to_thread import run_sync
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from pipeline.interfaces.http import idempotency
from pipeline.interfaces.http.fields import Name
from pipeline.operations.quotas import AtOnce
from pipeline.operations.refusal import Refused
from pipeline.storage import installation

MAX_FIELDS, MAX_FIELD_BYTES, MAX_HEADERS, MAX_HEADER_BYTES = 100, 64_000, 8, 4096
"""Limits of a multipart form, and of each of its parts."""
UPLOADS = AtOnce(16, "uploads")
"""Includes files inside JSON bodies, and files that Penstock fetches for a request."""
_BLOCK_BYTES = 1_000_000
"""Bytes in memory that are written together."""
_COUNTED_BYTES = 8_000_000
"""Bytes that count against the quota together."""


@dataclass
class File:
    """A file that arrives, and is then on disk. Move it from `path`, or it is removed when the request ends."""

    name: str
    """The name of the form's field."""
    filename: str
    path: Path
    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)
    _pending: list[bytes] = field(default_factory=list)

    @property
    def sha256(self) -> str:
        digest: str = self._digest.hexdigest()
        return digest

    def add(self, data: bytes) -> None:
        self._pending.append(data)

    def write(self) -> None:
        """Append the gathered bytes to the file on disk; count and hash them. Blocks: for a thread."""
        block = b"".join(self._pending)
        self._pending.clear()
        with self.path.open("ab") as file:
            file.write(block)
        self._digest.update(block)
        self.size += len(block)

    def measure(self) -> None:
        """Count and hash a file that `fetch` wrote to `path`. Blocks: for a thread."""
        with self.path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                self._digest.update(block)
                self.size += len(block)

    @property
    def pending(self) -> int:
        return sum(map(len, self._pending))


@dataclass
class Form:
    """A form's files, and the values of its fields by name."""

    files: list[File] = field(default_factory=list)
    fields: dict[str, list[str]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The hash of the form's content: the same under any boundary between its parts. Leaves out a password, which a
        reader of the hash could guess."""
        parts = sorted((name, *values) for name, values in self.fields.items() if name != "password")
        parts += [(file.name, file.filename, file.sha256) for file in self.files]
        return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()


def of_folder(form: Form) -> tuple[list[tuple[Path, str]], str]:
    """Return ([(path on disk, file name)], the folder's name in the field `groupName` or an empty string).

    Raises `Refused` without files or with other fields, `RequestValidationError` (422) for a wrong name.
    """
    if form.fields.keys() - {"groupName", "wait"} or not form.files:
        raise Refused("send files, and the field `groupName` to name their folder", code="invalid")
    try:
        folder = TypeAdapter(Name).validate_python(form.fields["groupName"][-1]) if "groupName" in form.fields else ""
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", "groupName", *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from None
    return [(file.path, file.filename) for file in form.files], folder


def uploaded(max_files: int = 1) -> Callable[[Request], AsyncIterator[Form]]:
    """Return a dependency of endpoints that take files: `Annotated[Form, Depends(uploaded())]`.

    Also name the scope in the route's `dependencies`, which run first: else the server receives the files of callers
    without it.
    """

    async def form(request: Request) -> AsyncIterator[Form]:
        async with receive(request, max_files) as received:
            yield received

    return form


@asynccontextmanager
async def receive(request: Request, max_files: int = 1) -> AsyncIterator[Form]:
    """The form or file that the request carries, on disk as long as the context lasts.

    A file as the whole body has its name in `X-Filename`, percent-encoded, and options in the query. Raises `Refused`:
    400 for a broken form, 408, 413, 415, 429, 507 for a full disk; `ForeignFolder` if the data folder is another
    database's; the errors of `idempotency.recognise`.
    """
    form = Form()
    try:
        # Hold the place only while the body arrives: the operation may take longer, as with `wait`.
        with UPLOADS.one(request.state.caller.id):
            await _receive(request, form, max_files)
        await idempotency.recognise(request, form.digest)
        yield form
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise Refused("the server's disk is full", code="disk_full") from error
        raise
    finally:
        for file in form.files:
            file.path.unlink(missing_ok=True)


async def _receive(request: Request, form: Form, max_files: int) -> None:
    state = request.app.state
    # Check before the first file: a file in a new folder would make it look used.
    await run_sync(installation.check, state.context.db, state.context.settings)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    receiver = _Receiver(request, form, max_files)
    request.state.incoming.take_files()
    if kind == b"multipart/form-data":
        await receiver.multipart(options.get(b"boundary", b""))
    elif kind in {b"application/octet-stream", b"application/pdf"} or kind.startswith(b"image/"):
        await receiver.body()
    else:
        raise Refused("send multipart/form-data, or the file itself as application/octet-stream", code="unsupported")


class _Receiver:
    """Parses one request's body into files and fields."""

    def __init__(self, request: Request, form: Form, max_files: int) -> None:
        self._request = request
        self._form = form
        self._max_files = max_files
        self._folder: Path = request.app.state.context.settings.upload_dir
        self._uncounted = 0
        self._part: _Part | None = None
        self._ended = False
        self._field_count = 0

    async def body(self) -> None:
        """Write the whole body to disk as one file. The query's parameters become the form's fields: the first
        `MAX_FIELDS`, each cut to `MAX_FIELD_BYTES` characters."""
        if "password" in self._request.query_params:
            message = "an address is no place for a password, since logs show it: send a form with the field `password`"
            raise Refused(message, code="bad_request")
        name = unquote(self._request.headers.get("x-filename", ""), errors="replace")[:1000]
        for key, value in self._request.query_params.multi_items()[:MAX_FIELDS]:
            self._form.fields.setdefault(key, []).append(value[:MAX_FIELD_BYTES])
        file = self._new_file("file", name)
        async for data in self._request.stream():
            file.add(data)
            await self._flush(file, _BLOCK_BYTES)
        await self._flush(file)

    async def multipart(self, boundary: bytes) -> None:
        """Parse a form: write its files to disk, and collect its fields. Raises `Refused`: 400 for a broken form, 413
        for too many files or fields or a long field, 429 above the upload quota."""
        if not boundary:
            raise Refused("the form names no boundary", code="bad_multipart")
        callbacks: Any = {
            "on_part_begin": self._part_begins,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._data,
            "on_part_end": self._part_ends,
            "on_end": self._end,
        }
        try:
            parser = python_multipart.MultipartParser(
                boundary, callbacks, max_header_count=MAX_HEADERS, max_header_size=MAX_HEADER_BYTES
            )
            async for data in self._request.stream():
                parser.write(data)
                for file in self._form.files:
                    await self._flush(file, _BLOCK_BYTES)
            parser.finalize()
        except ClientDisconnect:
            raise
        except (FormParserError, MultipartParseError, UnicodeDecodeError):
            raise Refused("the form cannot be read: a part of it is broken", code="bad_multipart") from None
        if not self._ended:
            raise Refused("the form ends in the middle", code="bad_multipart")
        for file in self._form.files:
            await self._flush(file)

    async def _flush(self, file: File, beyond: int = 0) -> None:
        """Write the file's gathered bytes if there are at least `beyond`. Counts them against the quota, in whole
        megabytes, with `beyond` 0 at once, else from `_COUNTED_BYTES` on. Raises `Refused` (429) above the quota."""
        if file.pending < beyond:
            return
        self._uncounted += file.pending
        megabytes = 0
        if self._uncounted >= _COUNTED_BYTES or not beyond:
            megabytes, self._uncounted = math.ceil(self._uncounted / 1e6), 0
        await run_sync(self._write, file, megabytes)

    def _write(self, file: File, megabytes: int) -> None:
        if megabytes:
            self._request.app.state.quotas.take_upload(self._request.state.caller.id, megabytes)
        file.write()

    def _new_file(self, name: str, filename: str) -> File:
        if len(self._form.files) >= self._max_files:
            raise Refused(f"at most {self._max_files} files are accepted at once", code="too_large")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / f"incoming-{uuid4().hex}"
        path.touch(mode=0o600)
        file = File(name, filename, path)
        self._form.files.append(file)
        return file

    def _part_begins(self) -> None:
        self._part = _Part()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        assert self._part
        self._part.header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        assert self._part
        self._part.header_value += data[start:end]

    def _header_ends(self) -> None:
        assert self._part
        if bytes(self._part.header).lower() == b"content-disposition":
            self._part.disposition = bytes(self._part.header_value)
        self._part.header, self._part.header_value = bytearray(), bytearray()

    def _headers_end(self) -> None:
        assert self._part
        _, options = parse_options_header(self._part.disposition)
        if b"name" not in options:
            raise Refused("a part of the form has no name", code="bad_multipart")
        self._part.name = options[b"name"].decode()
        if b"filename" in options:
            self._part.file = self._new_file(self._part.name, options[b"filename"].decode("utf-8", "replace"))
            return
        self._field_count += 1
        if self._field_count > MAX_FIELDS:
            raise Refused(f"a form has at most {MAX_FIELDS} fields", code="too_large")

    def _data(self, data: bytes, start: int, end: int) -> None:
        assert self._part
        if self._part.file is not None:
            self._part.file.add(data[start:end])
            return
        self._part.value += data[start:end]
        if len(self._part.value) > MAX_FIELD_BYTES:
            raise Refused(f"a field of a form has at most {MAX_FIELD_BYTES} bytes", code="too_large")

    def _part_ends(self) -> None:
        assert self._part
        if self._part.file is None:
            self._form.fields.setdefault(self._part.name, []).append(self._part.value.decode())

    def _end(self) -> None:
        self._ended = True


@dataclass
class _Part:
    """The part of a form that the parser reads."""

    name: str = ""
    disposition: bytes = b""
    header: bytearray = field(default_factory=bytearray)
    header_value: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    file: File | None = None
