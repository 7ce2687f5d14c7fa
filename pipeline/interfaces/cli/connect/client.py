"""A client of paperless-ngx's REST API: the few requests that the connector needs, checked and bounded.

Written against versions 2 and 3. Version 3 keeps several versions of a document's file, has SHA-256 checksums, pages of
tasks, and statuses in lower case; version 2 has MD5 checksums and lists of tasks.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

import httpx2
from pydantic import Field, TypeAdapter, ValidationError

from pipeline.engine import foreign_json
from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.sandbox.limits import FetchLimits
from pipeline.reading.web.fetch import Fetched, fetch, parse_url

_VERSIONS = (10, 9, 7, 5, 3)
"""Versions of the API to request, in this order, until the server knows one."""
_PAGE_SIZE, _MOST_ROWS = 50, 100_000
_MOST_JSON_BYTES, _MOST_LIST_BYTES = 64_000_000, 4_000_000
"""The most bytes of an answer, and of a page of documents, whose rows lack the text."""
_JSON_S, _FILE_S, _LIST_S = 60.0, 600.0, 600.0
"""Time limits of an answer, of a file, and of all pages of a list."""
_NAME_CHARS = 200
"""The characters of a title or file name that lists keep."""
_QUOTED = 300
_SERVER_BUSY = frozenset({"http_408", "http_425", "http_429"})
_NO_CONNECTION = frozenset({"unknown_host", "unreachable", "timeout", "bad_reply"})
_LABEL = "Penstock"
"""The label of versions that the connector uploads."""
_T = TypeVar("_T")
_Id = Annotated[int, Field(ge=0, lt=2**63)]


class PaperlessError(UserError):
    """A request to paperless failed. `code`: that of `fetch`, or `not_paperless` for an answer of another shape."""

    @property
    def is_down(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in _NO_CONNECTION | _SERVER_BUSY or self.code.startswith("http_5")

    @property
    def blames_document(self) -> bool:
        """Whether paperless refuses this document or its values; other documents may pass."""
        return self.code in {"too_large", "http_400", "http_413", "http_422"}


@dataclass(frozen=True)
class Version:
    """One version of a document's file. `checksum`: SHA-256."""

    id: _Id
    checksum: str | None = None
    version_label: str | None = None


@dataclass(frozen=True)
class PaperlessDocument:
    """A document in paperless. Rows of lists lack the later fields."""

    id: _Id
    title: str
    tags: list[int]
    original_file_name: str | None = None
    content: str | None = None
    created: str | None = None
    correspondent: int | None = None
    document_type: int | None = None
    storage_path: int | None = None
    versions: list[Version] | None = None
    """None before version 3."""
    original_checksum: str = ""
    """Before version 3: the MD5 of the file."""

    @property
    def name(self) -> str:
        """The file's name, as paperless gives it: not safe as a path."""
        return self.original_file_name or f"{self.title or self.id}.pdf"

    def source(self, uploaded: str = "") -> Version:
        """Return the newest version that the connector did not upload. `uploaded`: the SHA-256 of one that it did. The
        id is 0 before version 3, which knows no versions."""
        theirs = [each for each in self.versions or () if each.version_label != _LABEL and each.checksum != uploaded]
        newest = max(theirs, key=lambda version: version.id, default=Version(0, self.original_checksum))
        return newest if newest.checksum else Version(newest.id, f"version {newest.id}")

    def has_version(self, sha256: str) -> bool:
        return any(version.checksum == sha256 for version in self.versions or ())


@dataclass(frozen=True)
class Task:
    """A task that consumes an uploaded file. `is_over`: with `error` if it failed."""

    is_over: bool
    error: str = ""


@dataclass(frozen=True)
class _Named:
    id: _Id
    name: str


_DOCUMENT, _NAMED = TypeAdapter(PaperlessDocument), TypeAdapter(_Named)


class Paperless:
    """The paperless at an address that the machine's owner typed, so the address may be private.

    No redirect is followed: no other host receives the token. Every request is bounded in time and size. Raises
    `PaperlessError`.
    """

    def __init__(self, address: str, token: str, max_file_bytes: int) -> None:
        try:
            url = parse_url(address)
        except UnitError as error:
            raise UserError(f"{error} Name it like https://paperless.example.org", code="usage") from None
        self.address = str(url.copy_with(query=None)).rstrip("/").removesuffix("/api")
        self._token = token
        self._max_file_bytes = max_file_bytes
        self._versions: tuple[int, ...] = _VERSIONS

    def tag(self, name: str, *, create: bool = False) -> int | None:
        """Return the id of the tag of this name in any case; None without one, unless `create`."""
        for row in self._rows("/api/tags/", {"name__iexact": name}, _PAGE_SIZE)[0]:
            tag = _parsed(_NAMED, row)
            if tag.name.casefold() == name.casefold():
                return tag.id
        return _parsed(_NAMED, self._json("POST", "/api/tags/", sent={"name": name})).id if create else None

    def tagged(self, tag: int, most: int | None = None) -> list[PaperlessDocument]:
        """Return the documents with this tag, at most `most`, the oldest first, with the beginnings of their names."""
        query = {"tags__id__all": tag, "ordering": "id"}
        query |= {"fields": "id,title,tags,original_file_name", "truncate_content": "true"}
        found: dict[int, PaperlessDocument] = {}
        until, page, more = time.monotonic() + _LIST_S, 1, True
        while more and not (most and len(found) >= most):
            if len(found) >= _MOST_ROWS:
                why = f"{self.address} lists more than {_MOST_ROWS:,} documents: take fewer with --limit"
                raise PaperlessError(why, code="too_long")
            if time.monotonic() > until:
                why = f"{self.address} has not listed all documents in {_LIST_S:g} s: take fewer with --limit"
                raise PaperlessError(why, code="timeout")
            try:
                rows, more = self._rows("/api/documents/", {**query, "page": page}, _PAGE_SIZE)
            except PaperlessError as error:
                if error.code == "http_404" and page > 1:
                    break  # the list has become shorter
                raise
            known = len(found)
            for row in (_parsed(_DOCUMENT, each) for each in rows):
                if tag in row.tags:  # servers ignore filters that they do not know
                    file = row.original_file_name and row.original_file_name[:_NAME_CHARS]
                    found.setdefault(row.id, PaperlessDocument(row.id, row.title[:_NAME_CHARS], [tag], file))
            more, page = more and len(found) > known, page + 1
        return list(found.values())[:most]

    def document(self, document_id: int) -> PaperlessDocument | None:
        """Return the document with its text and checksum; None if it does not exist or is not visible."""
        try:
            row = self._json("GET", f"/api/documents/{document_id}/")
            if "versions" not in row:
                row["original_checksum"] = self._original_checksum(document_id)
        except PaperlessError as error:
            if error.code == "http_404":
                return None
            raise
        return _parsed(_DOCUMENT, row)

    def download(self, document: PaperlessDocument, to: Path) -> None:
        """Write the document's source, as it was uploaded: not the copy that paperless makes of it."""
        version = document.source().id
        query = {"original": "true"} | ({"version": str(version)} if version else {})
        self._request("GET", f"/api/documents/{document.id}/download/", query=query, to=to)

    def change(self, document_id: int, values: Mapping[str, object]) -> None:
        """Change fields of the document, all in one request."""
        self._request("PATCH", f"/api/documents/{document_id}/", sent=values)

    def has_file(self, md5: str) -> bool:
        """Whether a document of a paperless before version 3 has this file."""
        rows, _ = self._rows("/api/documents/", {"checksum__iexact": md5, "fields": "id"}, 3)
        ids = [row.get("id") for row in rows if isinstance(row, dict)]
        return any(isinstance(each, int) and self._original_checksum(each) == md5 for each in ids)

    def upload(self, file: Path, filename: str, document: PaperlessDocument, tags: list[int]) -> str:
        """Upload a PDF, as the document's next version, or before version 3 as a document of its own with the same
        fields and these tags. Return the id of the task that consumes it."""
        fields: dict[str, Any]
        path, fields = f"/api/documents/{document.id}/update_version/", {"version_label": _LABEL}
        if document.versions is None:
            path = "/api/documents/post_document/"
            fields = {"title": document.title, "tags": [str(tag) for tag in tags]}
            for name in ("created", "correspondent", "document_type", "storage_path"):
                if value := getattr(document, name):
                    fields[name] = str(value)
        form = httpx2.Request(
            "POST", self.address, data=fields, files={"document": (filename, file.read_bytes(), "application/pdf")}
        )
        answer = self._request("POST", path, body=form.read(), kind=form.headers["content-type"])
        task = self._parse(answer)
        if isinstance(task, dict):
            task = task.get("task_id")
        if not isinstance(task, str) or not task:
            raise _unlike_paperless(self.address)
        return task

    def task(self, task_id: str) -> Task | None:
        """Return the state of a task; None if paperless does not list it."""
        rows = _results(self._parse(self._request("GET", "/api/tasks/", query={"task_id": task_id})))
        row = next((row for row in rows if isinstance(row, dict) and row.get("task_id") == task_id), None)
        if row is None:
            return None
        status = str(row.get("status", "")).lower()
        if status not in {"failure", "failed", "revoked"}:
            return Task(status == "success")
        data = row.get("result_data")
        facts = data if isinstance(data, dict) else {}
        twin = f"a duplicate of #{facts['duplicate_of']}" if "duplicate_of" in facts else "no reason given"
        return Task(True, self._quoted(str(facts.get("error_message") or row.get("result") or twin)))

    def task_of(self, filename: str) -> str:
        """Return the id of the newest task for a file of this name; empty without one."""
        for row in _results(self._parse(self._request("GET", "/api/tasks/"))):
            if isinstance(row, dict) and filename in json.dumps(row, ensure_ascii=False):
                return str(row.get("task_id") or "")
        return ""

    def _original_checksum(self, document_id: int) -> str:
        return str(self._json("GET", f"/api/documents/{document_id}/metadata/").get("original_checksum") or "")

    def _rows(self, path: str, query: Mapping[str, object], most: int) -> tuple[list[Any], bool]:
        """Return a page of at most `most` rows, and whether another one follows."""
        page = self._json("GET", path, query={**query, "page_size": most}, max_bytes=_MOST_LIST_BYTES)
        rows = _results(page)
        if len(rows) > most:
            raise PaperlessError(f"{self.address} sends more rows than it was asked for", code="not_paperless")
        return rows, bool(page.get("next"))

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        sent: Mapping[str, object] | None = None,
        max_bytes: int = _MOST_JSON_BYTES,
    ) -> dict[str, Any]:
        answer = self._parse(self._request(method, path, query=query, sent=sent, max_bytes=max_bytes))
        if not isinstance(answer, dict):
            raise _unlike_paperless(self.address)
        return answer

    def _parse(self, answer: Fetched) -> object:
        try:
            return foreign_json.loads(answer.body)
        except (ValueError, RecursionError):
            raise _unlike_paperless(self.address) from None

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        sent: Mapping[str, object] | None = None,
        body: bytes | None = None,
        kind: str = "application/json",
        to: Path | None = None,
        max_bytes: int = _MOST_JSON_BYTES,
    ) -> Fetched:
        is_file = to is not None or kind != "application/json"
        limits = FetchLimits(
            max_bytes=self._max_file_bytes if to else max_bytes,
            timeout_s=_FILE_S if is_file else _JSON_S,
            max_redirects=0,
        )
        body = json.dumps(sent).encode() if sent is not None else body
        headers = {"authorization": f"Token {self._token}"} | ({"content-type": kind} if body is not None else {})
        address = f"{self.address}{path}" + (f"?{urlencode(query)}" if query else "")
        while True:
            headers["accept"] = f"application/json; version={self._versions[0]}"
            try:
                answer = fetch(
                    address, limits, lambda: True, method=method, body=body, headers=headers, to=to, allow_private=True
                )
            except UnitError as error:
                if error.code == "http_406" and len(self._versions) > 1:
                    self._versions = self._versions[1:]
                    continue
                raise self._explained(error, is_file=is_file) from None
            self._versions = self._versions[:1]
            return answer

    def _explained(self, error: UnitError, *, is_file: bool) -> PaperlessError:
        match error.code:
            case "http_401":
                words = "paperless refuses the token: copy it from My Profile in paperless"
            case "http_403":
                words = "the token's user lacks a permission in paperless: it must view and change documents and tags"
            case "http_404":
                words = f"{self.address} has no such page: name the address at which the browser shows paperless"
            case "http_406":
                words = "this paperless is too old: it knows none of the versions of the API that Penstock does"
            case "redirects" | "http_301" | "http_302" | "http_303" | "http_307" | "http_308":
                words = f"{self.address} redirects: name the address that the browser shows there (https?)"
            case "bad_certificate":
                words = f"{str(error).rstrip('.')}: SSL_CERT_FILE names a file with the authorities to trust"
            case "too_large" if is_file:
                words = f"{str(error).rstrip('.')} (PENSTOCK_DOCUMENTS__MAX_UPLOAD_MB)"
            case code if code.startswith("http_4") and error.beginning:
                words = f"{error} It says: {self._quoted(error.beginning)}"
            case "unreachable" | "timeout":
                words = f"{str(error).rstrip('.')}. Does paperless run at {self.address}?"
            case _:
                words = str(error)
        return PaperlessError(words, code=error.code)

    def _quoted(self, text: str) -> str:
        """Return the beginning of a foreign text on one line, without the token."""
        return " ".join(text.replace(self._token, "…").split())[:_QUOTED]


def _results(answer: object) -> list[Any]:
    """Return the rows of a page, or of a bare list."""
    rows = answer.get("results") if isinstance(answer, dict) else answer
    if not isinstance(rows, list):
        raise _unlike_paperless("the server")
    return rows


def _parsed(adapter: TypeAdapter[_T], row: object) -> _T:
    """Check a row's fields."""
    try:
        return adapter.validate_python(row)
    except ValidationError:
        raise _unlike_paperless("the server") from None


def _unlike_paperless(host: str) -> PaperlessError:
    return PaperlessError(f"{host} does not answer like a paperless-ngx: check the address", code="not_paperless")
