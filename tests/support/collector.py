"""A real HTTP server that accepts traces like an OpenTelemetry collector."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """A collector of exported spans. A context manager: leaving it stops the server."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportTraceServiceRequest.FromString(body)
                outer.paths.add(self.path)
                outer.bodies.append(body)
                outer.spans += [
                    span for resource in request.resource_spans for of in resource.scope_spans for span in of.spans
                ]
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the attributes of the spans of this name, with `status`, `message` and the count of `events`."""
        return [
            {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
            | {"status": span.status.code, "message": span.status.message, "events": len(span.events)}
            for span in list(self.spans)
            if span.name == name
        ]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
