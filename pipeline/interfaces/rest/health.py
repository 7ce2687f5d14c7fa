"""Whether the process lives, and whether it can work. For monitors: no key is asked for, and nothing is told."""

import time
from asyncio import Lock
from collections.abc import Callable

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
    """The process answers."""

    status: str = Field(default="ok", examples=["ok"])


class Readiness(BaseModel):
    """What the process works with, each `ok` or what is wrong with it."""

    status: str = Field(examples=["ok"], description="`ok` or `unavailable`.")
    checks: dict[str, str] = Field(examples=[{"database": "ok", "schema": "ok", "redis": "ok"}])


@router.get("/healthz")
async def healthz() -> Health:
    """Say that the process is alive, whatever it works with."""
    return Health()


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Something is away."}})
async def readyz(request: Request, context: InContext, response: Response) -> Readiness:
    """Check the database, its schema and Redis. Whoever asks within a second of another gets the same answer."""
    found = await _asked(request.app.state, context)
    if found.status != "ok":
        response.status_code = 503
        response.headers["Retry-After"] = str(RETRY_S)
    return found


async def _asked(state: State, context: Context) -> Readiness:
    """One looks, and others wait for what it finds: nobody needs a key to ask, and looking may take seconds."""
    if not hasattr(state, "looking"):
        state.looking, state.readiness = Lock(), None
    async with state.looking:
        found: tuple[float, Readiness] | None = state.readiness
        if found is None or time.monotonic() - found[0] > _FRESH_S:
            readiness = await run_sync(_look, context)
            found = state.readiness = (time.monotonic(), readiness)
        return found[1]


def _look(context: Context) -> Readiness:
    database = _found(lambda: _schema(context))
    schema = "unknown" if database else _found(lambda: _matches(context))
    redis = _found(lambda: reach(context.settings.effective_redis_url))
    checks = {"database": database or "ok", "schema": schema or "ok", "redis": redis or "ok"}
    if all(value == "ok" for value in checks.values()):
        return Readiness(status="ok", checks=checks)
    return Readiness(status="unavailable", checks=checks)


def _found(look: Callable[[], object]) -> str:
    """What is wrong, in words that tell nothing of the server; empty: nothing."""
    try:
        look()
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
