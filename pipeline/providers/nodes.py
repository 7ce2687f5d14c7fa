"""Vision, Text and Embeddings from inference nodes, through their gateway. Whole pages: `node_pages`."""

import asyncio
import hashlib
import json
import os
import socket
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import RequestHooks, earlier_answers, request_hooks
from pipeline.engine.tables import storable
from pipeline.nodes.client import Attachment, JobFailed, Session, SessionReply
from pipeline.nodes.protocol import MODEL_NOT_AVAILABLE, NO_NODE, NODE_BUSY, Capability
from pipeline.providers import call_loop, token_claim
from pipeline.providers.errors import Target, unit_error
from pipeline.providers.protocols import MEDIA_TYPES, Answer, Usage, Vectors
from pipeline.providers.replies import MAX_MODEL_CHARS, BadReply, as_model, finite_vectors, model_name
from pipeline.settings import ProviderProfile

NO_NODE_WAIT_S = 15.0
"""How long a queue pauses without a node for it, unless the gateway says."""

_NO_NODE_CODES = {NO_NODE, MODEL_NOT_AVAILABLE, NODE_BUSY}
"""The gateway's error codes after it has asked every node."""
_REMEMBERED = 10_000
_PROBE_S = 10.0

Result = TypeVar("Result", bound=BaseModel)


class NodeResult(BaseModel):
    """Fields of every result of a node. Invalid values of model and usage must not cost the result."""

    model_config = ConfigDict(strict=True)
    model: Any = ""
    usage: Any = None
    truncated: bool = False


class TextResult(NodeResult):
    """A text from a node."""

    text: str


class _VectorsResult(NodeResult):
    vectors: list[Any]


@dataclass(frozen=True)
class Reply:
    """A node's answer, and its latency as seen from here."""

    result: dict[str, Any]
    attachments: Sequence[tuple[Attachment, bytes]]
    latency_ms: int


class Nodes:
    """The nodes behind a gateway, for one model (empty: any), as Vision, Text and Embeddings.

    Safe to share between threads and across a fork. All calls of a process to one gateway share a session. Every call
    ends within the profile's `timeout_s`. Several nodes may try its job in turn, but it counts as one call.
    """

    def __init__(self, name: str, profile: ProviderProfile, model: str = "") -> None:
        self.name = name
        self.model = model or profile.model
        self.profile = profile
        self._target = Target(name, self.model, profile.timeout_s, profile.api_key)
        self._answers: OrderedDict[str, int] = OrderedDict()
        """How many answers this process received for the same content. Only used in the loop's thread."""
        self._shared: _SharedSession | None = None

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
        """Answer `prompt` about `images`, of one of `MEDIA_TYPES`. Not every model follows `json_schema`, so check the
        answer. Raises `UnitError`."""
        if media_type not in MEDIA_TYPES or not images or not all(images):
            raise self.error("takes PNG, JPEG and WebP pictures only", kind=ErrorKind.PERMANENT, code="bad_image")
        pictures = [(Attachment(media_type=media_type, size=len(image)), image) for image in images]
        return self._answer(Capability.VISION, prompt, system, json_schema, pictures)

    def complete(self, prompt: str, *, system: str = "", json_schema: dict[str, object] | None = None) -> Answer:
        """Answer `prompt`. Not every node can make its model follow `json_schema`, so check the answer. Raises
        `UnitError`."""
        return self._answer(Capability.TEXT, prompt, system, json_schema, ())

    def _answer(
        self,
        capability: Capability,
        prompt: str,
        system: str,
        json_schema: dict[str, object] | None,
        pictures: Sequence[tuple[Attachment, bytes]],
    ) -> Answer:
        more = {"system": system, "json_schema": json_schema}
        reply = self.ask(
            capability, {"prompt": prompt} | {key: value for key, value in more.items() if value}, pictures
        )
        result = self.read(TextResult, reply)
        text = storable(result.text)
        most_in = token_claim.most_input([prompt, system], len(pictures))
        usage = self.usage_of(result, most_in, token_claim.most_output(text, self.profile.max_tokens))
        return Answer(text, self.model_of(result), usage, reply.latency_ms, result.truncated)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector for each text, from one call; no call for no texts. Raises `UnitError`, also for an empty
        text."""
        if any(not text.strip() for text in texts):
            raise self.error("was given an empty text to embed", kind=ErrorKind.PERMANENT, code="empty_input")
        if not texts:
            return Vectors([], self.model)
        reply = self.ask(Capability.EMBEDDINGS, {"texts": list(texts)})
        result = self.read(_VectorsResult, reply)
        try:
            vectors = finite_vectors(result.vectors, len(texts))
        except ValueError as error:
            raise self.bad_reply(f"gave {error}") from None
        # Only vectors of one model are compared, and nodes may name one model differently.
        usage = self.usage_of(result, token_claim.most_input(texts), 0)
        return Vectors(vectors, self.model or self.model_of(result), usage, reply.latency_ms)

    def probe(self) -> str:
        """Open a session, which costs nothing; return the result in words. Raises `UnitError`."""

        async def opened() -> str:
            try:
                welcome = await self._session().connected(min(_PROBE_S, self.profile.timeout_s))
            except UnitError as error:
                raise self._explained(error, "anything") from None
            return storable(welcome.instance_id[:100])

        self._check_configured()
        started = time.monotonic()
        instance = call_loop.run(opened())
        return f"reached in {_ms_since(started)} ms: a session with instance {instance} of the gateway"

    def close(self) -> None:
        """Close this process's session, which other providers with the same gateway and token share; current calls
        fail, later calls open a new session."""

        async def close(session: Session) -> None:
            await session.close()

        if self._shared is not None and call_loop.is_running(self._shared.loop):
            call_loop.run(close(self._shared.session))

    def ask(
        self, capability: Capability, body: dict[str, Any], attachments: Sequence[tuple[Attachment, bytes]] = ()
    ) -> Reply:
        """Wait for the result of one job by some node. A request repeated after a crash gets the paid answer. Raises
        `UnitError`."""
        self._check_configured()
        content = self._content(capability, body, attachments)
        started = time.monotonic()
        try:
            reply = call_loop.run(self._exchange(capability, body, attachments, content, request_hooks.get()))
        except TimeoutError:
            raise self._too_long() from None
        return Reply(reply.result, reply.attachments, _ms_since(started))

    def _content(
        self, capability: Capability, body: dict[str, Any], attachments: Sequence[tuple[Attachment, bytes]]
    ) -> str:
        facts = [self.name, capability, self.model, body, earlier_answers.get()]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for about, part in attachments:
            digest.update(about.media_type.encode() + hashlib.sha256(part).digest())
        return digest.hexdigest()

    async def _exchange(
        self,
        capability: Capability,
        body: dict[str, Any],
        attachments: Sequence[tuple[Attachment, bytes]],
        content: str,
        hooks: RequestHooks | None,
    ) -> SessionReply:
        loop = asyncio.get_running_loop()
        limit = loop.time() + self.profile.timeout_s
        reports: list[asyncio.Future[None]] = []
        if hooks is not None:
            async with asyncio.timeout_at(limit):
                await call_loop.at_gate(hooks.ready)
        # If this process is killed, its successor sends the same request id and gets the paid answer. A further request
        # after an answer wants a new answer.
        number = self._answers.get(content, 0)
        answered = True
        try:
            return await self._session().request(
                capability,
                self.model,
                body,
                attachments,
                timeout_s=max(0.001, limit - loop.time()),
                request_id=f"{content}:{number}",
                if_no_node=self.profile.when_no_node,
                on_sent=(lambda: reports.append(call_loop.at_gate(hooks.sent))) if hooks is not None else None,
            )
        except UnitError as error:
            answered = error.code != "gateway_unreachable"
            raise self._explained(error, capability) from None
        finally:
            if answered:
                self._answers[content] = number + 1
                self._answers.move_to_end(content)
                if len(self._answers) > _REMEMBERED:
                    self._answers.popitem(last=False)
            if reports:
                await asyncio.wait(reports)

    def _session(self) -> Session:
        """Return this process's session, shared by all services of the gateway. Called in the loop's thread."""
        loop = asyncio.get_running_loop()
        if self._shared is None or self._shared.loop is not loop or self._shared.session.closed:
            key = (self.profile.base_url, hashlib.sha256(self._token.encode()).hexdigest())
            shared = _sessions.get(key)
            if shared is None or shared.loop is not loop or shared.session.closed:
                shared = _sessions[key] = _SharedSession(loop, self.profile.base_url, self._token)
            self._shared = shared
        return self._shared.session

    @property
    def _token(self) -> str:
        return self.profile.api_key.get_secret_value().strip()

    def _check_configured(self) -> None:
        if not self._token:
            raise self._no_token("needs a token")
        if not (self._token.isascii() and self._token.isprintable()):
            raise self._no_token("cannot use this token, which contains invalid characters")

    def _no_token(self, problem: str) -> UnitError:
        advice = f"set {self._target.env}API_KEY to what `penstock nodes tokens create NAME --kind session` prints"
        return self.error(f"{problem}: {advice}", kind=ErrorKind.UNAVAILABLE, code="auth")

    def _too_long(self) -> UnitError:
        message = (
            f"did not finish within {self.profile.timeout_s:g} s (raise {self._target.env}TIMEOUT_S if it needs longer)"
        )
        return self.error(message, kind=ErrorKind.TRANSIENT, code="timeout")

    def _explained(self, error: UnitError, capability: str) -> UnitError:
        """Return the session's error in the words of this provider."""
        kind = error.kind
        if isinstance(error, JobFailed):
            if error.code in _NO_NODE_CODES:
                wait_s = NO_NODE_WAIT_S if error.retry_after_s is None else error.retry_after_s
                needed = f"{capability} with the model '{self.model}'" if self.model else capability
                message = f"has no node for {needed} now: start one with `penstock node`"
                return self.error(message, kind=ErrorKind.RATE_LIMITED, code=NO_NODE, retry_after_s=wait_s)
            if kind is ErrorKind.CANCELLED:
                kind = ErrorKind.TRANSIENT  # the job was cancelled, but its result is still needed
            return self.error(f"failed: {error}", kind=kind, code=error.code, retry_after_s=error.retry_after_s)
        if error.code == "auth":
            return self._no_token(
                f"has a gateway that refuses the token, unless {self._target.env}BASE_URL is not a gateway"
            )
        if error.code == "timeout":
            return self._too_long()
        if error.code == "gateway_unreachable":
            return self.error(f"has {error}; check it, and {self._target.env}BASE_URL", kind=kind, code=error.code)
        advice = f": lower {self._target.env}IMAGE_DPI, or send less" if error.code == "too_large" else ""
        return self.error(f"cannot take this request: {error}{advice}", kind=kind, code=error.code)

    def read(self, shape: type[Result], reply: Reply) -> Result:
        """Validate a node's result against `shape`. Raises `UnitError`."""
        try:
            return as_model(shape, {key: value for key, value in reply.result.items() if value is not None})
        except BadReply as error:
            raise self.bad_reply(f"gave a result that cannot be used: {error}") from None

    def model_of(self, result: NodeResult) -> str:
        """Return the model that answered, as reported by the node."""
        return model_name(result.model) or self.model

    def usage_of(self, result: NodeResult, most_in: int, most_out: int) -> Usage:
        """Return the tokens that a node reports, lowered to `most_in` and `most_out`; 0 if it reports none."""
        reported = result.usage.get if isinstance(result.usage, dict) else lambda _: None
        return token_claim.plausible(self.name, reported("input_tokens"), reported("output_tokens"), most_in, most_out)

    def bad_reply(self, message: str) -> UnitError:
        """Return (do not raise) the error for an invalid result of a node. It is transient, because another node may do
        better."""
        return self.error(message, kind=ErrorKind.TRANSIENT, code="bad_reply")

    def error(self, message: str, *, kind: ErrorKind, code: str, retry_after_s: float | None = None) -> UnitError:
        """Return (do not raise) an error of this provider."""
        return unit_error(self._target, message, kind=kind, code=code, retry_after_s=retry_after_s)


class _SharedSession:
    """A session of one process; closed when no provider uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, urls: str, token: str) -> None:
        self.loop = loop
        self.session = Session(urls, token, name=f"{socket.gethostname()} {os.getpid()}"[:MAX_MODEL_CHARS])
        weakref.finalize(self, call_loop.drop, loop, self.session.close).atexit = False


_sessions: "weakref.WeakValueDictionary[tuple[str, str], _SharedSession]" = weakref.WeakValueDictionary()


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
