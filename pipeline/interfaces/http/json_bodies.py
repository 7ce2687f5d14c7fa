"""JSON bodies: `text_of` counts their parts before they are parsed; a thread parses a large one, one for each caller.

Half a million names in four megabytes take seconds to parse and to refuse; the event loop would serve no other caller.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from pipeline.operations.refusal import Refused

Parsed = TypeVar("Parsed")
MAX_PARTS = 20_000
"""Names, lists, objects and items in one body. A thousand items with all their fields have fewer."""
_SMALL_BYTES = 4_000
"""Up to this size, the event loop parses a body itself."""


def text_of(body: bytes, most: int = MAX_PARTS) -> str:
    """The body as text. Raises `Refused`: 413 for more than `most` parts (names, lists, objects and items together),
    422 for a body that is not UTF-8. Does not check that the text is JSON.

    Brackets and commas inside of strings do not count.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused("the body is not UTF-8", code="invalid") from None
    if _parts(text) > most and _parts_outside_strings(text, most) > most:
        detail = f"the body has more than {most:,} names, lists, objects and items"
        raise Refused(detail, code="too_large", headers={"Connection": "close"})
    return text


def _parts(text: str) -> int:
    return sum(map(text.count, ":,[{"))


def _parts_outside_strings(text: str, most: int) -> int:
    bare = text.replace("\\\\", "").replace('\\"', "")
    strings = bare.count('"') // 2
    # Each string is a name or an item. Splitting at a million quotes would hold up all threads.
    return strings if strings > most else _parts("".join(bare.split('"')[::2]))


class Turns:
    """Parses large bodies in threads: one of each caller at a time, and two of all."""

    def __init__(self) -> None:
        self._at_once = CapacityLimiter(2)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(self, request: Request, body: bytes, work: Callable[[bytes], Parsed]) -> Parsed:
        """Return `work(body)`: called at once for a small body, else in a thread, for one large body of each caller and
        two of all at a time.

        Raises the errors of `work`.
        """
        if len(body) <= _SMALL_BYTES:
            return work(body)
        caller = request.state.caller.id
        lock = self._locks.get(caller)
        if lock is None:
            lock = self._locks[caller] = asyncio.Lock()
        async with lock:
            return await run_sync(work, body, limiter=self._at_once)


def turns(request: Request) -> Turns:
    """The `Turns` that all requests of this application share."""
    of_application: Turns = request.app.state.turns
    return of_application


class JsonRoute(APIRoute):
    """`APIRouter(route_class=JsonRoute)`: for routes whose body is a model."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's own handler, but parse and validate a JSON body by `Turns` first; FastAPI accepts the
        finished model unchanged."""
        handle, field = super().get_route_handler(), self.body_field

        async def handler(request: Request) -> Response:
            return await handle(_Request(request, field) if field else request)

        return handler


class _Request(Request):
    def __init__(self, request: Request, field: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._field = field

    async def json(self) -> Any:
        return await turns(self).read(self, await self.body(), partial(_validated, self._field))


def _validated(field: Any, body: bytes) -> Any:
    model, errors = field.validate(json.loads(text_of(body)), loc=("body",))
    if errors:
        raise RequestValidationError(errors)
    return model
