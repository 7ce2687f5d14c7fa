"""Errors as problem details (RFC 9457): `application/problem+json`, `detail` a string, `code` a word for programs.

Endpoints raise the errors of the services; one table gives each code its status. The log, and not the answer, holds
what a caller cannot mend, such as paths of this machine.
"""

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from redis import RedisError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.tables import storable
from pipeline.reading.sandbox.limits import NO_READER
from pipeline.storage.database import is_passing

log = structlog.get_logger(__name__)
MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
"""Seconds in `Retry-After` for errors that name none."""

STATUS: dict[str, int] = {
    **dict.fromkeys(("bad_cursor", "bad_request", "bad_multipart", "key_in_address"), 400),
    "unauthorized": 401,
    **dict.fromkeys(("forbidden", "read_only", "bad_origin", "not_allowed"), 403),
    **dict.fromkeys(("not_found", "no_page", "no_picture"), 404),
    "slow": 408,
    **dict.fromkeys(
        (
            "illegal_state",
            "nothing_to_do",
            "incomplete",
            "ambiguous",
            "no_result",
            "still_running",
            "already_running",
            "exists",
            "duplicate",
            "deleting",
            "gate_closed",
            "idle",
            "node_connected",
        ),
        409,
    ),
    "too_large": 413,
    **dict.fromkeys(("unsupported", "archive"), 415),
    "wrong_host": 421,
    **dict.fromkeys(("too_many_requests", "quota"), 429),
    **dict.fromkeys(("io_error", "io", "permission", "unreadable", "output"), 500),
    **dict.fromkeys(
        (
            "offline",
            "no_redis",
            "redis_down",
            "stack_down",
            "schema",
            "installation",
            "unreachable",
            "busy",
            "unavailable",
            "ending",
            "queue_full",
            *NO_READER,
        ),
        503,
    ),
    "too_long": 504,
    **dict.fromkeys(("unknown_provider", "unknown_model"), 422),  # the body names it, not the address
    "disk_full": 507,
}
"""HTTP status by an error's code. Other codes that begin with `unknown_` get 404, all others 422."""

_UNTOLD = {
    "io_error": "the server cannot read or write a file; its log says which",
    "io": "the server cannot read or write a file; its log says which",
    "permission": "the server may not read or write a file of its own; its log says which",
    "unreadable": "the server cannot read a file of its own; its log says which",
    "output": "the server cannot write a file of its own; its log says which",
    "disk_full": "the server's disk is full",
    "installation": "the server's database and data folder do not belong together; its log says more",
    "schema": "the server's database is not up to date: run `penstock migrate` there",
}
"""Details that replace messages with paths, by code."""


class Invalid(BaseModel):
    """One fault of a request."""

    where: str = Field(description="Part of the request and name there, such as `query.limit`.")
    detail: str


class Problem(BaseModel):
    """Problem details, RFC 9457."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Not Found",
                    "status": 404,
                    "code": "unknown_document",
                    "detail": "there is no document 0123456789abcdef",
                }
            ]
        }
    )
    type: str = "about:blank"
    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="The fault and its remedy, for people.")
    code: str = Field(description="The fault, for programs.")
    errors: list[Invalid] | None = Field(default=None, description="With 422: each fault of the request.")


class ProblemResponse(Response):
    """A problem as an answer."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        status: int,
        detail: str,
        code: str,
        headers: Mapping[str, str] | None = None,
        errors: list[Invalid] | None = None,
    ) -> None:
        self.detail, self.code = detail, code
        problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, code=code, errors=errors)
        content = json.dumps(problem.model_dump(exclude_none=True), ensure_ascii=False)
        super().__init__(storable(content).encode(), status, dict(headers or {}))


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses`, in the OpenAPI document, of an endpoint that may answer with problems of these
    statuses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def status_of(error: PenstockError) -> int:
    """Return the HTTP status for an error of Penstock.

    That is the one of its code in `STATUS`, else 404 for `unknown_…`, 503 for a passing failure of a unit, 422 for
    others.
    """
    code = getattr(error, "code", "")
    if code in STATUS:
        return STATUS[code]
    if code.startswith("unknown_"):
        return 404
    passing = isinstance(error, UnitError) and error.kind not in {ErrorKind.PERMANENT, ErrorKind.CANCELLED}
    return 503 if passing else 422


def problem(error: Exception, request: Request) -> ProblemResponse:
    """Return the problem, with its status, that answers any exception of this request.

    Logs those of status 500 and above.
    """
    return response_for(error, request.method, request.scope["path"])


def handlers(answer: Callable[[Exception, Request], Response]) -> dict[int | type[Exception], Any]:
    """Return the `exception_handlers` of an application: `answer` answers FastAPI's HTTP and validation errors.

    `Guard` answers all other exceptions.
    """

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error.__cause__, ClientDisconnect):
            raise error.__cause__
        if isinstance(error.__cause__, PenstockError | RequestValidationError):
            error = error.__cause__  # FastAPI reports every exception while it reads a body as a parsing error
        elif isinstance(error, HTTPException) and error.status_code == 405:
            error.headers = {"Allow": ", ".join(_methods(request))}
        elif (
            isinstance(error, RequestValidationError)
            and any(fault["loc"][0] == "path" for fault in error.errors())
            and (methods := request.app.openapi()["paths"].get(request.scope["path"]))
        ):
            # DELETE /documents/counts is not the deletion of a document "counts": that address accepts GET only.
            error = HTTPException(405, headers={"Allow": ", ".join(methods).upper()})
        return answer(error, request)

    return {HTTPException: handle, RequestValidationError: handle}


def _methods(request: Request) -> list[str]:
    """The methods that this address accepts: starlette names those of its first route only."""

    def possible(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return [method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if possible(method)]


def response_for(error: Exception, method: str, path: str) -> ProblemResponse:
    """Return the problem, with its status, that answers any exception.

    A defect goes to the log; the answer is a 500 without details.
    """
    match error:
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return ProblemResponse(error.status_code, *_http(error, method), headers=error.headers)
        case PenstockError():
            return _expected(error)
    if away := _unavailable(error):
        log.warning("api.unavailable", code="unavailable", reason=type(error).__name__)
        return ProblemResponse(503, f"{away}: try again in a moment", "unavailable", {"Retry-After": str(RETRY_S)})
    log.error("api.failed", method=method, path=path[:200], exc_info=error)
    return ProblemResponse(500, "the server failed; its log says why", "internal")


def _unavailable(error: Exception) -> str:
    if isinstance(error, RedisError):
        return "Redis cannot be reached"
    if isinstance(error, PoolTimeoutError):
        return "the server is busy"
    return "the database cannot be reached" if is_passing(error) else ""


def _expected(error: PenstockError) -> ProblemResponse:
    status, code = status_of(error), getattr(error, "code", "") or "invalid"
    if status >= 500:
        log.warning("api.unavailable", code=code, reason=str(error))
    headers = dict(getattr(error, "headers", {}))
    if status in {429, 503}:
        retry_after_s = getattr(error, "retry_after_s", None)
        headers.setdefault("Retry-After", str(max(1, round(retry_after_s or RETRY_S))))
    return ProblemResponse(status, _UNTOLD.get(code, str(error)), code, headers)


def _http(error: HTTPException, method: str) -> tuple[str, str]:
    match error.status_code:
        case 404:
            return "no such address; /openapi.json lists all addresses", "not_found"
        case 405:
            return f"this address does not accept {method[:20]}", "method_not_allowed"
        case status:
            words = str(error.detail or HTTPStatus(status).phrase)
            return words, HTTPStatus(status).phrase.lower().replace(" ", "_")


def _invalid(error: RequestValidationError) -> ProblemResponse:
    """Return a 422 with the first 20 faults, without the values sent: they may be secrets, or not be text."""
    faults = [
        Invalid(where=".".join(str(part)[:60] for part in fault["loc"]), detail=str(fault["msg"])[:300])
        for fault in error.errors()[:20]
    ]
    detail = "; ".join(f"{fault.where}: {fault.detail}" for fault in faults) or "the request is not valid"
    return ProblemResponse(422, detail, "invalid", errors=faults)
