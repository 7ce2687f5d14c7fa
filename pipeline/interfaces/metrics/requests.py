"""Metrics of requests to the API, counted in its process: a restart resets them."""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNKNOWN = "other"
_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BROKEN_OFF = 499
"""The status of requests whose client went away before an answer began."""


class RequestMetrics:
    """Counts requests by route template, never by path: only the code makes labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by = ["method", "route"]
        self._total = Counter(
            "penstock_api_requests",
            "Requests by route template and class of status, since the API's process began.",
            [*by, "status"],
            registry=registry,
        )
        self._took = Histogram(
            "penstock_api_request_duration_seconds",
            "Time until an answer of the API begins.",
            by,
            buckets=_EDGES_S,
            registry=registry,
        )
        self._open = Gauge(
            "penstock_api_requests_in_progress",
            "Requests and event streams in progress.",
            registry=registry,
        )

    def count(self, method: str, route: str, status: int, took_s: float) -> None:
        """Count one request and its duration. `status`: 499 if its client disconnected before an answer."""
        method = method if method in _METHODS else UNKNOWN
        self._total.labels(method, route, f"{status // 100}xx").inc()
        self._took.labels(method, route).observe(took_s)

    def middleware(self, app: App) -> App:
        """Wrap the application to count its requests. The outermost layer: refused requests count as well."""

        async def counted(scope: Message, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            started, status, took_s = time.perf_counter(), 0, 0.0

            async def answer(message: Message) -> None:
                nonlocal status, took_s
                if message["type"] == "http.response.start":
                    status, took_s = int(message["status"]), time.perf_counter() - started
                await send(message)

            with self._open.track_inprogress():
                try:
                    await app(scope, receive, answer)
                except Exception:
                    status = status or 500
                    raise
                finally:
                    self.count(
                        scope["method"], _route(scope), status or _BROKEN_OFF, took_s or time.perf_counter() - started
                    )

        return counted


def _route(scope: Message) -> str:
    """The template of the route that answered, with the prefixes of its routers: `/api/v1/documents/{id}`; `other` if
    no route matched."""
    # A route holds only its own part of the path; FastAPI keeps the whole path beside it.
    route = (scope.get("fastapi") or {}).get("effective_route_context") or scope.get("route")
    return str(getattr(route, "path", "") or UNKNOWN)
