"""Whether the process is alive, and whether it can work. For monitors: it needs no key, and reveals nothing."""

import time
from asyncio import Lock
from collections.abc import Callable
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field
from starlette.datastructures import State

from pipeline.engine.connection import reach
from pipeline.engine.errors import PenstockError
from pipeline.interfaces.http.dependencies import InContext
from pipeline.interfaces.http.errors import RETRY_S
from pipeline.storage import installation
from pipeline.storage.context import Context
from pipeline.storage.schema import HEAD, current

router = APIRouter(tags=["health"])
_FRESH_S = 1.0


class Health(BaseModel):
    """The answer of a live process."""

    status: str = Field(default="ok", examples=["ok"])


class Readiness(BaseModel):
    """The dependencies of the process, each `ok` or its problem."""

    status: str = Field(examples=["ok"], description="`ok` or `unavailable`.")
    checks: dict[str, str] = Field(examples=[{"database": "ok", "schema": "ok", "redis": "ok"}])


@router.get("/livez", name="livez")
@router.get("/healthz")
async def healthz() -> Health:
    """Say that the process is alive, whatever the state of its dependencies."""
    return Health()


_UNREADY: dict[int | str, dict[str, Any]] = {503: {"model": Readiness, "description": "A dependency does not work."}}


@router.get("/ready", name="ready", responses=_UNREADY)
@router.get("/readyz", responses=_UNREADY)
async def readyz(request: Request, context: InContext, response: Response) -> Readiness:
    """Check the database, its schema and Redis. Requests within a second share an answer."""
    readiness = await _shared_check(request.app.state, context)
    if readiness.status != "ok":
        response.status_code = 503
        response.headers["Retry-After"] = str(RETRY_S)
    return readiness


async def _shared_check(state: State, context: Context) -> Readiness:
    """Return the state of the dependencies, checked at most once a second for all requests.

    Requests need no key, and a check may take seconds.
    """
    if not hasattr(state, "checking"):
        state.checking, state.readiness = Lock(), None
    async with state.checking:
        cached: tuple[float, Readiness] | None = state.readiness
        if cached is None or time.monotonic() - cached[0] > _FRESH_S:
            readiness = await run_sync(_check, context)
            cached = state.readiness = (time.monotonic(), readiness)
        return cached[1]


def _check(context: Context) -> Readiness:
    database = _problem(lambda: _schema(context))
    schema = "unknown" if database else _problem(lambda: _matches(context))
    redis = _problem(lambda: reach(context.settings.effective_redis_url))
    checks = {"database": database or "ok", "schema": schema or "ok", "redis": redis or "ok"}
    if all(value == "ok" for value in checks.values()):
        return Readiness(status="ok", checks=checks)
    return Readiness(status="unavailable", checks=checks)


def _problem(check: Callable[[], object]) -> str:
    """Return the code of the error that the check raises, `unavailable` for one without a code; empty if the check
    passes. A message could reveal something of the server."""
    try:
        check()
    except PenstockError as error:
        return getattr(error, "code", "") or "unavailable"
    except Exception:  # noqa: BLE001  # whatever it is, it is not ready
        return "unavailable"
    return ""


def _schema(context: Context) -> str | None:
    return current(context.db, patience_s=0)


def _matches(context: Context) -> None:
    if _schema(context) != HEAD:
        raise PenstockError("another schema")
    installation.check(context.db, context.settings)
