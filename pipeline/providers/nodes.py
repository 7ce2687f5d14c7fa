"""Vision, Text and Embeddings of inference nodes, through their gateway. Whole pages: `node_pages`."""

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
"""How long a queue pauses when there is no node for it, if the gateway does not say."""

_NOBODY = {NO_NODE, MODEL_NOT_AVAILABLE, NODE_BUSY}
"""What the gateway says when it has asked every node that there is."""
_REMEMBERED = 10_000
_PROBE_S = 10.0

Result = TypeVar("Result", bound=BaseModel)


class Made(BaseModel):
    """What every result of a node says of itself. Nonsense about model and usage must not cost what was made."""

    model_config = ConfigDict(strict=True)
    model: Any = ""
    usage: Any = None
    truncated: bool = False


class MadeText(Made):
    """A text that a node made."""

    text: str


class _MadeVectors(Made):
    vectors: list[Any]


@dataclass(frozen=True)
class Reply:
    """What a node answered, and how long that took from here."""

    result: dict[str, Any]
    attachments: Sequence[tuple[Attachment, bytes]]
    latency_ms: int


class Nodes:
    """The nodes behind a gateway, asked for one model (empty: whichever they have), as Vision, Text and Embeddings.

    Safe to share between threads and across a fork. All of a process's calls to one gateway share a session. Every
    call ends within the profile's `timeout_s`; its job may be done by several nodes after one another, but is one call.
    """

    def __init__(self, name: str, profile: ProviderProfile, model: str = "") -> None:
        self.name = name
        self.model = model or profile.model
        self.profile = profile
        self._target = Target(name, self.model, profile.timeout_s, profile.api_key)
        self._answers: OrderedDict[str, int] = OrderedDict()
        """How many answers this process received for the same content. Only used on the loop's thread."""
        self._shared: _Shared | None = None

    def describe(self, image: bytes, media_type: str, prompt: str) -> Answer:
        """Answer `prompt` about `image`, of one of `MEDIA_TYPES`. Raises `UnitError`."""
        return self.look([image], media_type, prompt)

    def look(
        self,
        images: Sequence[bytes],
        media_type: str,
        prompt: str,
        *,
        system: str = "",
        json_schema: dict[str, object] | None = None,
    ) -> Answer:
        """Answer `prompt` about `images`, of one of `MEDIA_TYPES`; `json_schema` as for `complete`."""
        if media_type not in MEDIA_TYPES or not images or not all(images):
            raise self.error("takes PNG, JPEG and WebP pictures only", kind=ErrorKind.PERMANENT, code="bad_image")
        pictures = [(Attachment(media_type=media_type, size=len(image)), image) for image in images]
        return self._answer(Capability.VISION, prompt, system, json_schema, pictures)

    def complete(self, prompt: str, *, system: str = "", json_schema: dict[str, object] | None = None) -> Answer:
        """Answer `prompt`. Not every node can hold its model to `json_schema`, so check the answer."""
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
        made = self.read(MadeText, reply)
        text = storable(made.text)
        most_in = token_claim.most_asked([prompt, system], len(pictures))
        usage = self.usage_of(made, most_in, token_claim.most_answered(text, self.profile.max_tokens))
        return Answer(text, self.model_of(made), usage, reply.latency_ms, made.truncated)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """One vector for each text, in one call; no call for no texts. Raises `UnitError`."""
        if any(not text.strip() for text in texts):
            raise self.error("was given an empty text to embed", kind=ErrorKind.PERMANENT, code="empty_input")
        if not texts:
            return Vectors([], self.model)
        reply = self.ask(Capability.EMBEDDINGS, {"texts": list(texts)})
        made = self.read(_MadeVectors, reply)
        try:
            vectors = finite_vectors(made.vectors, len(texts))
        except ValueError as error:
            raise self.bad_reply(f"gave {error}") from None
        # Vectors are compared with those of the same model: nodes may give one model several names.
        usage = self.usage_of(made, token_claim.most_asked(texts), 0)
        return Vectors(vectors, self.model or self.model_of(made), usage, reply.latency_ms)

    def probe(self) -> str:
        """Open a session, which costs nothing; the answer in words. Raises `UnitError`."""

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
        """Close this process's session; current calls fail, later ones open another."""

        async def close(session: Session) -> None:
            await session.close()

        if self._shared is not None and call_loop.is_running(self._shared.loop):
            call_loop.run(close(self._shared.session))

    def ask(
        self, capability: Capability, body: dict[str, Any], attachments: Sequence[tuple[Attachment, bytes]] = ()
    ) -> Reply:
        """One job, done by some node. Raises `UnitError`."""
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
        asked = [self.name, capability, self.model, body, earlier_answers.get()]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
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
        noted: list[asyncio.Future[None]] = []
        if hooks is not None:
            async with asyncio.timeout_at(limit):
                await call_loop.at_gate(hooks.ready)
        # Its successor, should this process be killed, gets the answer that was paid for. Who asks again after an
        # answer wants another one.
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
                on_sent=(lambda: noted.append(call_loop.at_gate(hooks.sent))) if hooks is not None else None,
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
            if noted:
                await asyncio.wait(noted)

    def _session(self) -> Session:
        """The session of this process, shared by all services of the gateway. Called on the loop's thread."""
        loop = asyncio.get_running_loop()
        if self._shared is None or self._shared.loop is not loop or self._shared.session.closed:
            key = (self.profile.base_url, hashlib.sha256(self._token.encode()).hexdigest())
            found = _sessions.get(key)
            if found is None or found.loop is not loop or found.session.closed:
                found = _sessions[key] = _Shared(loop, self.profile.base_url, self._token)
            self._shared = found
        return self._shared.session

    @property
    def _token(self) -> str:
        return self.profile.api_key.get_secret_value().strip()

    def _check_configured(self) -> None:
        if not self._token:
            raise self._no_token("needs a token")
        if not (self._token.isascii() and self._token.isprintable()):
            raise self._no_token("cannot use this token, which has odd characters")

    def _no_token(self, what: str) -> UnitError:
        advice = f"set {self._target.env}API_KEY to what `penstock nodes tokens create NAME --kind session` prints"
        return self.error(f"{what}: {advice}", kind=ErrorKind.UNAVAILABLE, code="auth")

    def _too_long(self) -> UnitError:
        message = (
            f"did not finish within {self.profile.timeout_s:g} s (raise {self._target.env}TIMEOUT_S if it needs longer)"
        )
        return self.error(message, kind=ErrorKind.TRANSIENT, code="timeout")

    def _explained(self, error: UnitError, what: str) -> UnitError:
        """The session's error in the words of this provider."""
        kind = error.kind
        if isinstance(error, JobFailed):
            if error.code in _NOBODY:
                wait_s = NO_NODE_WAIT_S if error.retry_after_s is None else error.retry_after_s
                wanted = f"{what} with the model '{self.model}'" if self.model else what
                message = f"has no node for {wanted} now: start one with `penstock node`"
                return self.error(message, kind=ErrorKind.RATE_LIMITED, code=NO_NODE, retry_after_s=wait_s)
            if kind is ErrorKind.CANCELLED:
                kind = ErrorKind.TRANSIENT  # somebody ended the job; whoever needs its result still does
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
        return self.error(f"cannot be asked this: {error}{advice}", kind=kind, code=error.code)

    def read(self, shape: type[Result], reply: Reply) -> Result:
        """A node's result in the shape that it should have. Raises `UnitError`."""
        try:
            return as_model(shape, {key: value for key, value in reply.result.items() if value is not None})
        except BadReply as error:
            raise self.bad_reply(f"gave a result that cannot be used: {error}") from None

    def model_of(self, made: Made) -> str:
        """The model that answered, as the node says."""
        return model_name(made.model) or self.model

    def usage_of(self, made: Made, most_in: int, most_out: int) -> Usage:
        """The tokens that a node says it used, as far as it is believed."""
        said = made.usage.get if isinstance(made.usage, dict) else lambda _: None
        return token_claim.believed(self.name, said("input_tokens"), said("output_tokens"), most_in, most_out)

    def bad_reply(self, message: str) -> UnitError:
        """What a node sent is not what was asked for; another may do better."""
        return self.error(message, kind=ErrorKind.TRANSIENT, code="bad_reply")

    def error(self, message: str, *, kind: ErrorKind, code: str, retry_after_s: float | None = None) -> UnitError:
        """An error of this provider."""
        return unit_error(self._target, message, kind=kind, code=code, retry_after_s=retry_after_s)


class _Shared:
    """A session of one process; closed when nobody has it any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop, urls: str, token: str) -> None:
        self.loop = loop
        self.session = Session(urls, token, name=f"{socket.gethostname()} {os.getpid()}"[:MAX_MODEL_CHARS])
        weakref.finalize(self, call_loop.drop, loop, self.session.close).atexit = False


_sessions: "weakref.WeakValueDictionary[tuple[str, str], _Shared]" = weakref.WeakValueDictionary()


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
