"""A real HTTP server that speaks the OpenAI API, follows its script, and records its calls.

In a test: ``with ProviderServer(latency_s=0.1) as server: … server.base_url …``. From a shell:
``python -m tests.support.provider_server --port 8900 --latency 1 --limit-per-s 10``; scripts are then set by
``POST /__script`` (the fields of `Script`, faults as objects with the fields of `Fault`; ``"reset": true`` forgets
the records). ``GET /__stats`` returns the records and counts (``?records=0``: the counts alone).
"""

import argparse
import base64
import hashlib
import json
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from typing import Any, Literal, Self

from tests.support.provider_http import Server

FaultKind = Literal[
    "reply",
    "hang",
    "close",
    "trickle",
    "trickle_headers",
    "malformed",
    "html",
    "truncated",
    "empty_choices",
    "no_content",
    "refusal",
    "content_filter",
]


@dataclass(frozen=True)
class Fault:
    """What to do with one call instead of answering it well.

    `reply`: send `status`, `headers` and `body` (an object is sent as JSON, a string or bytes as they are; None: a
    plausible error, or for a status below 300 a good answer, of `text` if there is one). `truncated`: answer with
    `text`, cut off. `close`: cut the connection in the middle of the body. `trickle`, `trickle_headers`: a byte now
    and then, for ever. `latency_s` replaces the server's own.
    """

    kind: FaultKind = "reply"
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    text: str = ""
    latency_s: float | None = None


@dataclass
class Record:
    """One call as the server saw it. `time`: monotonic seconds at its arrival; `ended`: the same at its end,
    0 before; `status`: 0 until it is answered; `image_sha256`: of its last picture."""

    time: float
    path: str
    model: str = ""
    key_ok: bool = True
    image_sha256: str = ""
    prompt: str = ""
    status: int = 0
    ended: float = 0.0
    pieces: int = 0
    """The pieces of the answer that left, if it was streamed."""
    body: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass
class Script:
    """How the server behaves. It admits `limit` calls in any `window_s` seconds; 0: without limit.

    Each call uses up the next of `faults` (None: answer it well). Once none is left, `rule` decides, then `always`.
    `answers`: replies by the image's sha256. `models`: the only known ones; empty: any. `answer` makes the text for
    a call without pictures, `picture_answer` for one with pictures. `vector` makes the vector of a text.
    """

    latency_s: float = 0.0
    limit: int = 0
    window_s: float = 1.0
    max_concurrent: int = 0
    api_key: str = ""
    models: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    faults: deque[Fault | None] = field(default_factory=deque)
    always: Fault | None = None
    rule: Callable[[Record], Fault | None] | None = None
    answer: Callable[[Record], str] | None = None
    picture_answer: Callable[[Record], str] | None = None
    vector: Callable[[str], list[float]] | None = None
    streams: bool = True
    """Stream the answers of calls that ask for it; otherwise ignore that wish."""
    piece_s: float = 0.0
    """The pause before each streamed piece."""
    reports_usage: bool = True


@dataclass(frozen=True)
class Reply:
    """The reply on the wire; `how` tells the sender how to break it off."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    how: FaultKind = "reply"
    delay_s: float = 0.0
    pieces: tuple[bytes, ...] = ()
    """The events to stream instead of `body`."""
    piece_s: float = 0.0


def default_markdown(image: bytes) -> str:
    """Return the server's answer about `image`: Markdown with its hash, so that a test can tell pages apart."""
    digest = hashlib.sha256(image).hexdigest()
    return f"# Page {digest[:12]}\n\nThe picture has {len(image)} bytes.\n"


def default_vector(text: str) -> list[float]:
    """Return eight numbers in -1 … 1 that depend on `text` alone."""
    return [byte / 127.5 - 1 for byte in hashlib.sha256(text.encode()).digest()[:8]]


class ProviderServer:
    """The server with its records. A context manager: leaving it ends every connection."""

    def __init__(self, *, port: int = 0, **script: Any) -> None:
        self.script = Script(**script)
        self.script.faults = deque(self.script.faults)
        self.records: list[Record] = []
        self.max_concurrent = 0
        self._port = port
        self._under_way = 0
        self._admitted: deque[float] = deque()
        self._changed = threading.Condition()
        self.server: Server | None = None

    def __enter__(self) -> Self:
        self.server = Server(self, self._port)
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End every connection and refuse new ones, like a provider that goes down. Harmless if it is down."""
        if self.server:
            self.server.stop()

    def start(self) -> None:
        """Come back at the same port, after `stop`."""
        self.server = Server(self, self.port)
        self.server.start()

    @property
    def port(self) -> int:
        assert self.server, "the server is not running"
        return self.server.server_port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def counts(self) -> dict[int, int]:
        """Count calls by the status of their answer; 0: unanswered."""
        with self._changed:
            return dict(Counter(record.status for record in self.records))

    def stats(self, *, records: bool = True) -> dict[str, Any]:
        with self._changed:
            counts = {str(status): n for status, n in Counter(r.status for r in self.records).items()}
            stats: dict[str, Any] = {"calls": len(self.records), "by_status": counts}
            stats |= {"max_concurrent": self.max_concurrent, "under_way": self._under_way, **_spans(self.records)}
            return stats | ({"records": [asdict(r) for r in self.records]} if records else {})

    def push(self, *faults: Fault | None) -> None:
        """Add faults to the end of the script; None: answer that call well."""
        with self._changed:
            self.script.faults.extend(faults)

    def configure(self, change: dict[str, Any]) -> None:
        """Replace the script by a JSON script. Raises `TypeError` for unknown fields."""
        values = dict(change)
        reset = values.pop("reset", False)
        known = {f.name for f in fields(Script)} - {"rule", "answer", "picture_answer", "vector"}
        if unknown := values.keys() - known:
            raise TypeError(f"unknown fields: {', '.join(sorted(unknown))}")
        if "faults" in values:
            values["faults"] = deque(Fault(**f) if f else None for f in values["faults"])
        if values.get("always"):
            values["always"] = Fault(**values["always"])
        with self._changed:
            self.script = replace(self.script, **values)
            if reset:
                self.records.clear()
                self._admitted.clear()
                self.max_concurrent = self._under_way

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10) -> bool:
        """Wait until `condition` holds; check it whenever a call starts or ends."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def wait_for_calls(self, count: int, timeout_s: float = 10) -> bool:
        """Wait until `count` calls have arrived."""
        return self.wait_for(lambda: len(self.records) >= count, timeout_s)

    def arrive(self, path: str, body: dict[str, Any], key: str) -> tuple[Record, Reply]:
        """Count a call as under way and decide its reply. `leave` must follow."""
        record = read_call(path, body)
        with self._changed:
            record.key_ok = not self.script.api_key or key == self.script.api_key
            self._under_way += 1
            self.max_concurrent = max(self.max_concurrent, self._under_way)
            reply = self._decide(record)
            if body.get("stream") and self.script.streams and reply.how == "reply" and reply.status == 200:
                reply = _streamed(reply, self.script)
            self.records.append(record)
            self._changed.notify_all()
        return record, reply

    def leave(self, record: Record, status: int) -> None:
        """Record the end of a call. `status`: of its answer, 0 without one."""
        with self._changed:
            record.status, record.ended = status, time.monotonic()
            self._under_way -= 1
            self._changed.notify_all()

    def _decide(self, record: Record) -> Reply:
        script = self.script
        fault = self._next_fault(record)
        delay_s = script.latency_s if fault is None or fault.latency_s is None else fault.latency_s
        refusal = self._refusal(record)
        if refusal:
            return refusal
        if fault is None:
            return replace(_good_reply(record, script), delay_s=delay_s)
        return replace(_faulty_reply(record, fault, script), delay_s=delay_s)

    def _next_fault(self, record: Record) -> Fault | None:
        if self.script.faults:
            return self.script.faults.popleft()
        return (self.script.rule(record) if self.script.rule else None) or self.script.always

    def _refusal(self, record: Record) -> Reply | None:
        script = self.script
        if not record.key_ok:
            return _error(401, "Incorrect API key provided.", "invalid_api_key")
        if script.models and record.model not in script.models:
            return _error(404, f"The model '{record.model}' does not exist", "model_not_found")
        if script.max_concurrent and self._under_way > script.max_concurrent:
            return _error(429, "Too many concurrent requests", "concurrency_limit", {"Retry-After": "1"})
        return self._window_refusal(record.time) if script.limit else None

    def _window_refusal(self, now: float) -> Reply | None:
        while self._admitted and self._admitted[0] <= now - self.script.window_s:
            self._admitted.popleft()
        if len(self._admitted) < self.script.limit:
            self._admitted.append(now)
            return None
        wait_s = self._admitted[0] + self.script.window_s - now
        headers = {"Retry-After": str(math.ceil(wait_s)), "retry-after-ms": str(math.ceil(wait_s * 1000))}
        return _error(429, "Rate limit reached: quota exceeded, slow down", "rate_limit_exceeded", headers)


def _spans(records: Iterable[Record]) -> dict[str, float]:
    """Return the seconds of ended calls: their sum, and from the first arrival to the last end."""
    times = [(record.time, record.ended) for record in records if record.ended]
    span_s = max(end for _, end in times) - min(begin for begin, _ in times) if times else 0.0
    return {"busy_s": sum(end - begin for begin, end in times), "span_s": span_s}


def read_call(path: str, body: dict[str, Any]) -> Record:
    """Return a request as a record without a status."""
    record = Record(time=time.monotonic(), path=path, model=str(body.get("model", "")), body=body)
    texts: list[str] = []
    for message in body.get("messages", []):
        content = message.get("content") or ""
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if part["type"] == "image_url":
                record.image_sha256 = hashlib.sha256(_image(part)).hexdigest()
            else:
                texts.append(part["text"])
    record.prompt = "\n".join(texts) or "\n".join(_inputs(body))
    return record


def _image(part: dict[str, Any]) -> bytes:
    return base64.b64decode(part["image_url"]["url"].partition(",")[2])


def _inputs(body: dict[str, Any]) -> list[str]:
    value = body.get("input", [])
    return [value] if isinstance(value, str) else value


def _images(body: dict[str, Any]) -> Iterator[bytes]:
    for message in body["messages"]:
        if isinstance(message["content"], list):
            yield from (_image(part) for part in message["content"] if part["type"] == "image_url")


def _good_reply(record: Record, script: Script) -> Reply:
    if record.path.endswith("/embeddings"):
        inputs, vector = _inputs(record.body), script.vector or default_vector
        data = [{"object": "embedding", "index": i, "embedding": vector(t)} for i, t in enumerate(inputs)]
        tokens = sum(len(text) // 4 + 1 for text in inputs)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json_reply(200, {"object": "list", "data": data, "model": record.model, "usage": usage})
    return _json_reply(200, completion(record, _text_for(record, script)))


def _text_for(record: Record, script: Script) -> str:
    if record.image_sha256:
        picture_answer = script.picture_answer or (lambda _: default_markdown(next(_images(record.body))))
        return script.answers.get(record.image_sha256) or picture_answer(record)
    if script.answer:
        return script.answer(record)
    echo = hashlib.sha256(record.prompt.encode()).hexdigest()[:12]
    return json.dumps({"echo": echo}) if record.body.get("response_format") else f"Echo {echo}"


def completion(record: Record, text: str | None, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion as the API gives it."""
    prompt_tokens = len(record.prompt) // 4 + (800 if record.image_sha256 else 0)
    completion_tokens = len(text or "") // 4
    return {
        "id": "chatcmpl-test",
        "object": "chat.completion",
        "created": 0,
        "model": record.model,
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


PIECE_CHARS, MOST_PIECES = 8, 10_000


def _streamed(reply: Reply, script: Script) -> Reply:
    """Return the reply as events, if it is a completion."""
    try:
        whole = json.loads(reply.body)
        choice = dict(whole["choices"][0])
        message = dict(choice.pop("message"))
    except (ValueError, LookupError, TypeError, RecursionError):
        return reply
    text = message.pop("content", None) or ""
    size = max(PIECE_CHARS, len(text) // MOST_PIECES)  # Millions of pieces would stop the server's other answers.
    texts = [text[at : at + size] for at in range(0, len(text), size)] if isinstance(text, str) else [text]
    events = [{"delta": {"content": piece}, "index": 0} for piece in texts]
    events.append({"delta": message, "index": 0, "finish_reason": choice.get("finish_reason")})
    if isinstance(text, str) and not text and "refusal" not in message and message.get("role"):
        events[-1]["delta"] = message | {"content": ""}
    chunks = [{"model": whole.get("model"), "choices": [event]} for event in events]
    if script.reports_usage and whole.get("usage"):
        chunks.append({"model": whole.get("model"), "choices": [], "usage": whole["usage"]})
    pieces = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return replace(reply, pieces=(*pieces, b"data: [DONE]\n\n"), piece_s=script.piece_s)


def _faulty_reply(record: Record, fault: Fault, script: Script) -> Reply:
    if fault.kind == "reply":
        return _scripted_reply(record, fault, script)
    bodies: dict[FaultKind, object] = {
        "malformed": '{"choices": [{"mess',
        "html": "<!doctype html><title>Hello</title>",
        "truncated": completion(record, fault.text or "# Cut o", "length"),
        "empty_choices": completion(record, "") | {"choices": []},
        "no_content": completion(record, None, "") | {"usage": None},
        "refusal": completion(record, None, refusal=fault.text or "I cannot help with that."),
        "content_filter": completion(record, "", "content_filter"),
    }
    if fault.kind in bodies:
        content_type = "text/html" if fault.kind == "html" else "application/json"
        return replace(_json_reply(200, bodies[fault.kind]), headers={"Content-Type": content_type})
    return replace(_json_reply(200, completion(record, "never seen in full")), how=fault.kind)


def _scripted_reply(record: Record, fault: Fault, script: Script) -> Reply:
    if fault.body is not None:
        reply = _json_reply(fault.status, fault.body)
    elif fault.status >= 300:
        reply = _error(fault.status, "Scripted error", "scripted")
    else:
        reply = _json_reply(200, completion(record, fault.text)) if fault.text else _good_reply(record, script)
    return replace(reply, headers=reply.headers | fault.headers)


def _json_reply(status: int, body: object) -> Reply:
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    return Reply(status, text.encode() if isinstance(text, str) else text)


def _error(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> Reply:
    body = {"error": {"message": message, "type": "error", "param": None, "code": code}}
    return replace(_json_reply(status, body), headers=headers or {})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A provider for tests that speaks the OpenAI API.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds for each call")
    parser.add_argument("--limit-per-s", type=int, default=0, help="calls let in during any second")
    parser.add_argument("--limit", type=int, default=0, help="calls let in during any --window-s seconds")
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--max-concurrent", type=int, default=0)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--answers", default="", metavar="MODULE:FUNCTION", help="what answers calls to chat models")
    return parser.parse_args()


def _answers(name: str) -> dict[str, Any]:
    module, _, function = name.partition(":")
    return dict.fromkeys(("answer", "picture_answer"), getattr(import_module(module), function)) if name else {}


def main() -> None:
    """Serve until interrupted; the first line on standard output is the base URL."""
    args = _arguments()
    script = {"latency_s": args.latency, "max_concurrent": args.max_concurrent, "api_key": args.api_key}
    limit = {"limit": args.limit_per_s or args.limit, "window_s": 1.0 if args.limit_per_s else args.window_s}
    with ProviderServer(port=args.port, **script, **limit, **_answers(args.answers)) as server:
        sys.stdout.write(server.base_url + "\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
