"""Vision, Text and Embeddings of any service that speaks the OpenAI API."""

import asyncio
import base64
import json
import re
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol, TypeVar

import httpx2
import openai
import structlog

from pipeline.engine import foreign_json
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import request_hooks
from pipeline.engine.tables import storable
from pipeline.providers import call_loop, presets, token_claim
from pipeline.providers.chat_stream import Stream, text_of
from pipeline.providers.errors import Target, from_exception, from_reply, read_error, reasoning, status_in, unit_error
from pipeline.providers.protocols import MEDIA_TYPES, Answer, Question, RejectedAnswer, Usage, Vectors
from pipeline.providers.replies import finite_vectors, model_name
from pipeline.providers.reply_limit import ReplyLimit
from pipeline.reading.ocr.rendition import Picture
from pipeline.reading.web.fetch import trusted
from pipeline.settings import ProviderProfile
from pipeline.settings.providers import PUBLIC_SERVICE

MAX_REPLY_BYTES = 32 * 2**20
"""Longer replies are cut off and refused."""

_NO_KEY = "none"
_REFUSALS = frozenset({400, 405, 415, 422, 501})
"""The status codes with which a service may refuse to stream."""
_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
_FILTERED = frozenset(
    {
        "blocklist",
        "content_filter",
        "guardrail_intervened",
        "image_safety",
        "language",
        "prohibited_content",
        "recitation",
        "refusal",
        "safety",
        "sensitive",
        "spii",
    }
)
_FAILED = frozenset({"abort", "error", "insufficient_system_resource", "network_error"})
"""Reasons with which services end an answer, in lower case: at a limit, by a filter, by a failure. Gateways pass on the
names of Anthropic, Google and others."""

log = structlog.get_logger(__name__)
T = TypeVar("T")


class _HasContent(Protocol):
    @property
    def content(self) -> bytes: ...


@dataclass(frozen=True)
class _Reply:
    """A reply's JSON object, and its latency."""

    data: dict[str, Any]
    latency_ms: int
    pieces: int | None = None
    """The pieces of a reply that streamed in."""
    cut: bool = False
    """We broke it off."""


class OpenAICompatible:
    """One model of one provider, as Vision, Text and Embeddings.

    Safe to share between threads and across a fork: a connection belongs to the process that opened it. Every call ends
    within the profile's `timeout_s`. This class never retries: a failed call is one `UnitError`.
    """

    def __init__(
        self, name: str, profile: ProviderProfile, model: str = "", *, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> None:
        self.name = name
        self.model = model or profile.model
        self.profile = profile
        self._target = Target(name, self.model, profile.timeout_s, profile.api_key, self.model != profile.model)
        self._limit = ReplyLimit(
            max_reply_bytes,
            lambda message, code: unit_error(self._target, message, kind=ErrorKind.PERMANENT, code=code),
        )
        self._client: tuple[asyncio.AbstractEventLoop, openai.AsyncOpenAI] | None = None
        self._streams = True
        """False once the service has refused to stream."""

    def describe(self, image: bytes, media_type: str, prompt: str) -> Answer:
        """Answer `prompt` about `image`, of one of `MEDIA_TYPES`. Raises `UnitError`."""
        return self.describe_all([image], media_type, prompt)

    def describe_all(
        self,
        images: Sequence[bytes],
        media_type: str,
        prompt: str,
        *,
        system: str = "",
        json_schema: dict[str, object] | None = None,
    ) -> Answer:
        """Answer `prompt` about `images`, at least one, all of one of `MEDIA_TYPES`. Some services ignore
        `json_schema`, so check the answer. Raises `UnitError`."""
        if media_type not in MEDIA_TYPES or not images or not all(images):
            raise self._error("takes PNG, JPEG and WebP pictures only", code="bad_image")
        urls = (f"data:{media_type};base64,{base64.b64encode(image).decode('ascii')}" for image in images)
        return self._ask(
            prompt, system, json_schema, [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        )

    def complete(self, prompt: str, *, system: str = "", json_schema: dict[str, object] | None = None) -> Answer:
        """Answer `prompt`. Raises `UnitError`.

        With `json_schema`, the service is asked to follow it strictly (all properties required, none additional). Some
        services ignore this, so check the answer.
        """
        return self._ask(prompt, system, json_schema)

    def show(self, picture: Picture, question: Question, watch: Callable[[str], bool] = lambda _: False) -> Answer:
        """Answer a question about a picture without changing its words. Raises `UnitError`.

        The answer streams in: `watch` takes each piece of it, in the thread of all calls, and returns True to break the
        call off at once; the answer is then `cut`, and its tokens are estimated. A service that does not stream answers
        as a whole.
        """
        url = f"data:{picture.media_type};base64,{base64.b64encode(picture.data).decode('ascii')}"
        shown = {"url": url} | ({"detail": question.detail} if question.detail else {})
        parts: list[dict[str, object]] = [{"type": "image_url", "image_url": shown}]
        if question.prompt:
            parts.insert(1 if question.picture_first else 0, {"type": "text", "text": question.prompt})
        messages: list[dict[str, object]] = [{"role": "system", "content": question.system}] if question.system else []
        messages.append({"role": "user", "content": parts})
        texts = [question.prompt, question.system]
        body = {token_limit_field(self.profile): question.max_tokens, **question.fields}
        reply, stream = None, Stream(watch)
        try:
            reply = self._stream(messages, body, stream) if self._streams else None
        except UnitError as error:
            if error.code != "timeout" or not stream.only_reasons:
                raise
            what = f"reasoned for all {self.profile.timeout_s:g} s of its time, and wrote nothing"
            paid = token_claim.estimated(texts, picture.pixels, "", stream.pieces, cut=True)
            answer = Answer("", self.model, replace(paid, note=""), cut=True)
            raise RejectedAnswer(reasoning(self._target, what), answer, "reasoning") from None
        if reply is None:
            reply = self._call(lambda client: _send(client, self.model, messages, body))
        answer = self._answer_of(reply, token_claim.most_input(texts, 1), question.max_tokens)
        reported = answer.usage.output_tokens or (answer.usage.input_tokens and not answer.text)
        if reply.pieces is None or (reported and not reply.cut):
            return answer
        usage = token_claim.estimated(texts, picture.pixels, answer.text, reply.pieces, cut=reply.cut)
        return replace(answer, usage=usage, cut=reply.cut)

    def on_reasoning(self, answer: Answer) -> str:
        """Return the message about an answer that `is_reasoning`."""
        spent = answer.usage.reasoning_tokens or answer.usage.output_tokens
        what = f"spent {spent:,} of its {answer.usage.output_tokens:,} tokens on reasoning and stopped at its limit"
        return reasoning(self._target, what)

    def _ask(
        self, prompt: str, system: str, json_schema: dict[str, object] | None, pictures: Sequence[object] = ()
    ) -> Answer:
        messages: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
        messages.append(
            {"role": "user", "content": [{"type": "text", "text": prompt}, *pictures] if pictures else prompt}
        )
        most_in = token_claim.most_input([prompt, system], len(pictures))
        if json_schema is None:
            return self._chat(messages, most_in)
        schema = {"name": "answer", "strict": True, "schema": json_schema}
        return self._chat(messages, most_in, response_format={"type": "json_schema", "json_schema": schema})

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector for each text, from one call; no call for no texts. Raises `UnitError`, also for an empty
        text."""
        if any(not text.strip() for text in texts):
            raise self._error("was given an empty text to embed", code="empty_input")
        if not texts:
            return Vectors([], self.model)
        inputs = list(texts)
        reply = self._call(
            lambda client: client.embeddings.with_raw_response.create(
                model=self.model, input=inputs, encoding_format="float"
            )
        )
        try:
            vectors = _vectors_of(reply.data, len(inputs))
        except ValueError as error:
            raise self._error(f"gave {error}", kind=ErrorKind.TRANSIENT, code="bad_reply") from None
        usage = self._usage_of(reply, token_claim.most_input(inputs))
        return Vectors(vectors, self._model_of(reply), usage, reply.latency_ms)

    def probe(self) -> str:
        """Request the list of models, which costs nothing; return the result in words. Raises `UnitError`."""
        reply = self._call(lambda client: client.models.with_raw_response.list())
        listed = reply.data.get("data")
        models = [str(item.get("id")) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        known = "is listed" if self.model in models else f"is not among the {len(models)} models listed"
        return f"reached in {reply.latency_ms} ms; model {self.model} {known}"

    def close(self) -> None:
        """Close this process's connections; current calls fail, later calls open new connections."""

        async def close(client: openai.AsyncOpenAI) -> None:
            await client.close()
            self._client = None

        if self._client and call_loop.is_running(self._client[0]):
            call_loop.run(close(self._client[1]))

    def _chat(self, messages: list[dict[str, object]], most_in: int, **extra: object) -> Answer:
        body = {token_limit_field(self.profile): self.profile.max_tokens, **extra}
        temperature = presets.temperature(self.profile, self.model)
        if temperature is not None:
            body["temperature"] = temperature
        body |= self.profile.request_fields
        reply = self._call(lambda client: _send(client, self.model, messages, body))
        return self._answer_of(reply, most_in, self.profile.max_tokens)

    def _answer_of(self, reply: _Reply, most_in: int, max_tokens: int) -> Answer:
        choices = reply.data.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            raise self._error("gave no answer", kind=ErrorKind.TRANSIENT, code="empty_reply")
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        reason = str(choice.get("finish_reason") or "")
        reasons = set(re.findall(r"[a-z_]+", reason.casefold()[:200]))
        if reasons & _FAILED:
            self._raise_named(choice.get("error") or {"message": f"finish reason: {reason}"}, b"")
        truncated = bool(reasons & _CUT)
        if message.get("refusal") or reasons & _FILTERED:
            why = message.get("refusal") or f"its filter stopped the answer (finish reason: {reason})"
            error = self._error(f"refused to answer: {why}", code="refused")
            paid = self._usage_of(reply, most_in, token_claim.most_output("", max_tokens))
            raise RejectedAnswer(str(error), Answer("", self._model_of(reply), paid, reply.latency_ms), error.code)
        content = text_of(message.get("content"))
        # A model that sees nothing to write ends without a piece of text, and charges for the call all the same.
        is_empty = bool(reason) and isinstance(reply.data.get("usage"), dict) and not message.get("tool_calls")
        if content is None and not (truncated or is_empty):
            raise self._error("gave an answer without content", kind=ErrorKind.TRANSIENT, code="empty_reply")
        text = storable(content or "")
        usage = self._usage_of(reply, most_in, token_claim.most_output(text, max_tokens))
        return Answer(text, self._model_of(reply), usage, reply.latency_ms, truncated)

    def _call(self, send: Callable[[openai.AsyncOpenAI], Awaitable[_HasContent]]) -> _Reply:
        async def exchange() -> bytes:
            async with asyncio.timeout(self.profile.timeout_s):
                return (await send(self._connected())).content

        body, took_ms = self._run(exchange)
        return _Reply(self._parse(body), took_ms)

    def _stream(self, messages: list[dict[str, object]], body: dict[str, object], stream: Stream) -> _Reply | None:
        """Return a reply that streams in, or the whole reply of a service that ignores the request to stream. None if
        the service refuses to stream, as this process remembers. `stream` has the pieces, even after an error."""

        async def exchange() -> bytes | Stream | None:
            async with asyncio.timeout(self.profile.timeout_s):
                try:
                    streaming: Any = self._connected().chat.completions.with_streaming_response
                    sent = {"model": self.model, "messages": messages, "extra_body": body}
                    more = {"stream": True, "stream_options": {"include_usage": True}}
                    async with streaming.create(**sent, **more) as response:
                        if "event-stream" not in response.headers.get("content-type", ""):
                            return bytes(await response.read())
                        async for data in response.iter_bytes():
                            if stream.feed(data):
                                break  # leaving the block closes the connection
                        return stream
                except openai.APIStatusError as error:
                    facts = read_error(error.response.content)
                    if error.status_code in _REFUSALS and "stream" in f"{facts.message} {facts.param}".casefold():
                        return None
                    raise

        read, took_ms = self._run(exchange)
        if read is None:
            log.info("provider.does_not_stream", provider=self.name, model=self.model)
            self._streams = False
            return None
        if isinstance(read, bytes):
            return _Reply(self._parse(read), took_ms)
        if read.broken or not read.ended:
            raise self._error("broke its answer off", kind=ErrorKind.TRANSIENT, code="bad_reply")
        return _Reply(self._checked(read.data, b""), took_ms, read.pieces, read.cut)

    def _run(self, exchange: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, int]:
        """Return the result of an exchange, and its latency in milliseconds. Raises `UnitError`."""
        self._check_configured()
        started = time.monotonic()
        try:
            result = call_loop.run(exchange())
        except (openai.OpenAIError, httpx2.HTTPError, TimeoutError) as error:
            if isinstance(error.__cause__, UnitError):
                raise error.__cause__ from None  # the gate closed before anything was sent
            # Not chained: the SDK's errors hold the request, with the key and the picture.
            raise from_exception(error, self._target, datetime.now(UTC)) from None
        except UnicodeEncodeError:
            raise self._error("cannot be sent text with lone surrogates", code="bad_request") from None
        return result, round((time.monotonic() - started) * 1000)

    def _parse(self, body: bytes) -> dict[str, Any]:
        try:
            data = foreign_json.loads(body)
        except foreign_json.TooManyParts as parts:
            raise self._error(f"gave a reply that cannot be parsed: {parts}", code="too_large") from None
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            message = f"gave a reply that is not a JSON object: check {self._target.env}BASE_URL if this goes on"
            raise self._error(message, kind=ErrorKind.TRANSIENT, code="bad_reply")
        return self._checked(data, body)

    def _checked(self, data: dict[str, Any], body: bytes) -> dict[str, Any]:
        error = data.get("error")
        if error and not data.get("choices") and not data.get("data"):
            self._raise_named(error, body)
        return data

    def _raise_named(self, error: object, body: bytes) -> NoReturn:
        """Raise the error that a reply with status 200 names: routers report that of a service behind them so."""
        body = body or json.dumps({"error": error}).encode()
        raise from_reply(status_in(error), {}, body, self._target, datetime.now(UTC))

    def _connected(self) -> openai.AsyncOpenAI:
        """Return this process's client. Called only in the loop's thread, so it needs no lock."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client[0] is not loop:
            client = _new_client(self.profile, self._key, self._limit)
            self._client = (loop, client)
            weakref.finalize(self, call_loop.drop, loop, client.close).atexit = False
        return self._client[1]

    @property
    def _key(self) -> str:
        return self.profile.api_key.get_secret_value().strip()

    def _usage_of(self, reply: _Reply, most_in: int, most_out: int = 0) -> Usage:
        usage = reply.data.get("usage")
        reported = usage.get if isinstance(usage, dict) else lambda _: None
        tokens_in, tokens_out = reported("prompt_tokens"), reported("completion_tokens")
        details = reported("completion_tokens_details")
        reasoned = details.get("reasoning_tokens") if isinstance(details, dict) else None
        return token_claim.plausible(self.name, tokens_in, tokens_out, most_in, most_out, reasoned)

    def _model_of(self, reply: _Reply) -> str:
        return model_name(reply.data.get("model")) or self.model

    def _check_configured(self) -> None:
        if not self.model:
            raise self._error(f"has no model: set {self._target.env}MODEL", kind=ErrorKind.UNAVAILABLE, code="no_model")
        if self.profile.lacks_key:
            message = f"needs a key: set {self._target.env}API_KEY"
            raise self._error(message, kind=ErrorKind.UNAVAILABLE, code="auth")
        if not (self._key.isascii() and self._key.isprintable()):
            message = f"cannot use this key, which contains invalid characters: check {self._target.env}API_KEY"
            raise self._error(message, kind=ErrorKind.UNAVAILABLE, code="auth")

    def _error(self, message: str, *, kind: ErrorKind = ErrorKind.PERMANENT, code: str) -> UnitError:
        return unit_error(self._target, message, kind=kind, code=code)


def token_limit_field(profile: ProviderProfile) -> str:
    """Return the request's field for the limit on an answer's tokens: the public service's newer models require the new
    name."""
    return "max_completion_tokens" if profile.base_url == PUBLIC_SERVICE else "max_tokens"


def _send(
    client: openai.AsyncOpenAI, model: str, messages: list[dict[str, object]], body: dict[str, object]
) -> Awaitable[_HasContent]:
    return client.chat.completions.with_raw_response.create(
        model=model,
        messages=messages,  # type: ignore[arg-type] # plain dicts of the shapes the API documents
        extra_body=body,
    )


def _new_client(profile: ProviderProfile, key: str, limit: ReplyLimit) -> openai.AsyncOpenAI:
    """Return an unconnected client. It does not reference its provider, so that dropping the provider closes it."""

    async def finish_headers(request: httpx2.Request) -> None:
        for header in ("OpenAI-Organization", "OpenAI-Project"):
            request.headers.pop(header, None)
        if key:
            request.headers["Authorization"] = f"Bearer {key}"
        elif request.headers.get("Authorization") == f"Bearer {_NO_KEY}":
            del request.headers["Authorization"]

    async def pass_gate(request: httpx2.Request) -> None:
        hooks = request_hooks.get()
        if hooks is None:
            return
        await call_loop.at_gate(hooks.ready)

        async def trace(event: str, _: object) -> None:
            if event.endswith("send_request_body.complete"):
                await call_loop.at_gate(hooks.sent)

        request.extensions["trace"] = trace

    http_client = httpx2.AsyncClient(
        timeout=profile.timeout_s,
        verify=trusted(),
        follow_redirects=False,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        headers={"Accept-Encoding": "identity"},  # a few compressed bytes must not become gigabytes
        event_hooks={"request": [finish_headers, pass_gate], "response": [limit.apply]},
    )
    return openai.AsyncOpenAI(
        api_key=key or _NO_KEY,
        # Empty, so that the SDK does not use environment variables meant for other programs.
        organization="",
        project="",
        base_url=profile.base_url,
        timeout=profile.timeout_s,
        max_retries=0,
        http_client=http_client,
    )


def _vectors_of(data: dict[str, Any], count: int) -> list[list[float]]:
    """Return the vectors in the order of the inputs. Raises `ValueError`, which describes the problem."""
    items = data.get("data")
    if not isinstance(items, list) or len(items) != count:
        raise ValueError(f"other than {count} vectors")
    placed: dict[int, object] = {}
    for position, item in enumerate(items):
        fields = item if isinstance(item, dict) else {}
        index = fields.get("index", position)
        placed[index if isinstance(index, int) else -1] = fields.get("embedding")
    if placed.keys() != set(range(count)):
        raise ValueError("vectors with a wrong index")
    return finite_vectors([placed[index] for index in range(count)], count)
