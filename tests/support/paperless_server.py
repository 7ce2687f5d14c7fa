"""A paperless-ngx for tests: real HTTP, with the shapes and habits of versions 2 and 3, and faults by script."""

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.waiting import wait_until

TOKEN = "paperless-token-1f2e3d"
_API = {2: range(1, 10), 3: range(9, 11)}
_DEADLINE_S = 60
Fault = Callable[[Request], Response | None]
"""Answers a request in place of the server; None lets the server answer."""


@dataclass
class Stored:
    """A document. `files`: the versions of its file, the oldest first, by id."""

    id: int
    title: str
    content: str
    tags: list[int]
    filename: str
    files: dict[int, tuple[bytes, str | None]]
    fields: dict[str, Any] = field(default_factory=dict)
    visible: bool = True


@dataclass
class Consumption:
    """An uploaded file that waits, or its result."""

    id: str
    filename: str
    data: bytes
    root: int | None
    fields: dict[str, Any]
    status: str = "pending"
    result: str = ""
    document: int | None = None


class PaperlessServer:
    """A context manager. `release`: 2 or 3. `consumes`: whether uploaded files are consumed, at the next request."""

    def __init__(self, release: int = 3, page_size: int = 25) -> None:
        self.release = release
        self.page_size = page_size
        self.documents: dict[int, Stored] = {}
        self.tags: dict[str, int] = {}
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        self.changes: list[tuple[int, dict[str, Any]]] = []
        self.uploads: list[Consumption] = []
        self.faults: dict[str, Fault] = {}
        """By the beginning of `METHOD /path`."""
        self.consumes = True
        self.refuses = ""
        """Why it does not consume uploaded files."""
        self._last_id = 10
        self._lock = threading.Lock()
        app = Starlette(
            routes=[
                Route("/api/tags/", self._tags, methods=["GET", "POST"]),
                Route("/api/documents/", self._list),
                Route("/api/documents/post_document/", self._post, methods=["POST"]),
                Route("/api/documents/{id:int}/", self._document, methods=["GET", "PATCH"]),
                Route("/api/documents/{id:int}/metadata/", self._metadata),
                Route("/api/documents/{id:int}/download/", self._download),
                *(
                    [Route("/api/documents/{id:int}/update_version/", self._post, methods=["POST"])]
                    if release > 2
                    else []
                ),
                Route("/api/tasks/", self._tasks),
                Route("/{path:path}", lambda _: JSONResponse({"detail": "Not found."}, 404)),
            ]
        )
        self._server = uvicorn.Server(
            uvicorn.Config(self._guarded(app), host="127.0.0.1", port=0, log_level="critical", lifespan="off")
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started, _DEADLINE_S, "paperless serves")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(_DEADLINE_S)

    @property
    def url(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def tag(self, name: str) -> int:
        """Return the id of a tag, which it creates if necessary."""
        return self.tags.setdefault(name, self._next_id()) if name not in self.tags else self.tags[name]

    def add(self, data: bytes, *tags: str, filename: str = "scan.pdf", content: str = "old text") -> Stored:
        """Add a document."""
        number = self._next_id()
        stored = Stored(
            number, filename.rpartition(".")[0], content, [self.tag(t) for t in tags], filename, {number: (data, None)}
        )
        self.documents[number] = stored
        return stored

    def names(self, stored: Stored) -> set[str]:
        """Return the names of a document's tags."""
        return {name for name, number in self.tags.items() if number in stored.tags}

    @contextmanager
    def fault(self, request: str, answer: Fault) -> Iterator[None]:
        """Answer requests that begin like this (`GET /api/tags`) by `answer` during the block."""
        self.faults[request] = answer
        try:
            yield
        finally:
            del self.faults[request]

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _guarded(self, app: Starlette) -> Any:
        """Check token and version of the API, as paperless does before anything else."""

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            request = Request(scope, receive)
            line = f"{request.method} {request.url.path}"
            self.requests.append(f"{line}?{request.url.query}" if request.url.query else line)
            token = request.headers.get("authorization", "")
            self.tokens.add(token)
            fault = next((fault for start, fault in list(self.faults.items()) if line.startswith(start)), None)
            answer = fault(request) if fault else None
            if answer is None and token != f"Token {TOKEN}":
                answer = JSONResponse({"detail": "Invalid token."}, 401)
            version = request.headers.get("accept", "").partition("version=")[2]
            if answer is None and version and int(version) not in _API[self.release]:
                answer = JSONResponse({"detail": 'Invalid version in "Accept" header.'}, 406)
            with self._lock:
                self._consume()
            await (answer or app)(scope, receive, send)

        return guarded

    def _page(self, request: Request, rows: list[dict[str, Any]]) -> Response:
        size = min(int(request.query_params.get("page_size", self.page_size)), self.page_size)
        number = int(request.query_params.get("page", 1))
        part = rows[(number - 1) * size : number * size]
        if not part and number > 1:
            return JSONResponse({"detail": "Invalid page."}, 404)
        # Behind a proxy, paperless often names another scheme or host here.
        following = "https://elsewhere.invalid/api/" if number * size < len(rows) else None
        return JSONResponse({"count": len(rows), "next": following, "previous": None, "results": part})

    async def _tags(self, request: Request) -> Response:
        if request.method == "POST":
            name = (await request.json())["name"]
            return JSONResponse({"id": self.tag(name), "name": name, "slug": name}, 201)
        wanted = request.query_params.get("name__iexact", "").casefold()
        rows = [{"id": number, "name": name} for name, number in self.tags.items() if name.casefold() == wanted]
        return self._page(request, rows)

    async def _list(self, request: Request) -> Response:
        found = [each for each in self.documents.values() if each.visible]
        if tag := request.query_params.get("tags__id__all"):
            found = [each for each in found if int(tag) in each.tags]
        if checksum := request.query_params.get("checksum__iexact"):
            found = [each for each in found if checksum in {self._checksum(data) for data, _ in each.files.values()}]
        rows = [self._row(each) for each in sorted(found, key=lambda each: each.id)]
        if fields := request.query_params.get("fields"):
            rows = [{name: row[name] for name in fields.split(",") if name in row} for row in rows]
        return self._page(request, rows)

    async def _document(self, request: Request) -> Response:
        stored = self.documents.get(request.path_params["id"])
        if stored is None or not stored.visible:
            return JSONResponse({"detail": "Not found."}, 404)
        if request.method == "PATCH":
            values = await request.json()
            if len(values.get("title", "")) > 128:
                return JSONResponse({"title": ["Ensure this field has no more than 128 characters."]}, 400)
            if unknown := set(values.get("tags", ())) - set(self.tags.values()):
                return JSONResponse({"tags": [f'Invalid pk "{min(unknown)}" - object does not exist.']}, 400)
            self.changes.append((stored.id, values))
            stored.title = values.get("title", stored.title).strip()
            stored.content = values.get("content", stored.content).strip()
            stored.tags = values.get("tags", stored.tags)
        return JSONResponse(self._row(stored))

    def _checksum(self, data: bytes) -> str:
        return (hashlib.sha256 if self.release > 2 else hashlib.md5)(data).hexdigest()

    def _row(self, stored: Stored) -> dict[str, Any]:
        row = {
            "id": stored.id,
            "title": stored.title,
            "content": stored.content,
            "tags": stored.tags,
            "original_file_name": stored.filename,
            "created": "2026-03-01",
            "modified": "2026-03-01T10:00:00Z",
            "correspondent": None,
            "document_type": None,
            "storage_path": None,
            "owner": 3,
            "notes": [],
            "custom_fields": [],
            **stored.fields,
        }
        if self.release > 2:
            row["versions"] = [
                {
                    "id": number,
                    "added": "2026-03-01T10:00:00Z",
                    "version_label": label,
                    "checksum": self._checksum(data),
                    "is_root": number == stored.id,
                }
                for number, (data, label) in sorted(stored.files.items(), reverse=True)
            ]
        return row

    async def _metadata(self, request: Request) -> Response:
        stored = self.documents[request.path_params["id"]]
        data = stored.files[stored.id][0]
        return JSONResponse({"original_checksum": self._checksum(data), "original_size": len(data)})

    async def _download(self, request: Request) -> Response:
        stored = self.documents[request.path_params["id"]]
        if request.query_params.get("original") != "true":
            return Response(b"the archived copy")
        version = int(request.query_params.get("version", max(stored.files)))
        name = {"content-disposition": f'attachment; filename="{stored.filename}"'}
        return Response(stored.files[version][0], media_type="application/pdf", headers=name)

    async def _post(self, request: Request) -> Response:
        async with request.form() as form:
            file = form["document"]
            assert not isinstance(file, str)
            data, filename = await file.read(), str(file.filename)
            fields = {name: form.getlist(name) for name in form if name != "document"}
        task = f"task-{len(self.uploads) + 1}"
        upload = Consumption(task, filename, data, request.path_params.get("id"), fields)
        self.uploads.append(upload)
        return JSONResponse(task)

    def _consume(self) -> None:
        for upload in self.uploads:
            if upload.status != "pending" or not self.consumes:
                continue
            if self.refuses:
                upload.status, upload.result = "failure", self.refuses
                continue
            number = self._next_id()
            twin = next(
                (d for d in self.documents.values() if any(data == upload.data for data, _ in d.files.values())), None
            )
            text = f"read by paperless in {upload.filename}"
            if upload.root is not None:
                label = upload.fields.get("version_label", [None])[0]
                self.documents[upload.root].files[number] = (upload.data, label)
                self.documents[upload.root].content = text
            elif self.release < 3 and twin:
                upload.status = "failure"
                upload.result = f"Not consuming {upload.filename}: It is a duplicate of {twin.title} (#{twin.id})."
                continue
            else:
                tags = [int(tag) for tag in upload.fields.get("tags", [])]
                title = upload.fields.get("title", ["?"])[0]
                self.documents[number] = Stored(
                    number, title, text, tags, upload.filename, {number: (upload.data, None)}
                )
            upload.status, upload.document = "success", number
            upload.result = f"Success. New document id {number} created"

    async def _tasks(self, request: Request) -> Response:
        wanted = request.query_params.get("task_id")
        found = [each for each in reversed(self.uploads) if wanted in {None, each.id}]
        if self.release < 3:
            return JSONResponse(
                [
                    {
                        "id": 1,
                        "task_id": each.id,
                        "task_file_name": each.filename,
                        "type": "auto",
                        "status": each.status.upper(),
                        "result": each.result or None,
                        "related_document": each.document and str(each.document),
                    }
                    for each in found
                ]
            )
        rows = [
            {
                "id": 1,
                "task_id": each.id,
                "task_type": "consume_file",
                "input_data": {"filename": each.filename},
                "status": each.status,
                "result_data": {"error_message": each.result} if each.status == "failure" else {},
                "related_document_ids": [each.document] if each.document else [],
            }
            for each in found
        ]
        return self._page(request, rows)


def query_of(request: str) -> dict[str, list[str]]:
    """Return the query of a line of `requests`."""
    return parse_qs(urlsplit(request.partition(" ")[2]).query)
