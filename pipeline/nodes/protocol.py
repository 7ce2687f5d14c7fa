"""The messages between nodes, gateway and sessions: version 1. docs/how-to/nodes.md describes them for other languages.

Each message is a text frame with a JSON object. Its `attachments` say which binary frames follow it, in their order,
before any other frame. Who gets a message of an unknown type passes over it; unknown fields mean nothing.
"""

import json
import re
from enum import IntEnum, StrEnum
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from pipeline.engine import foreign_json

VERSION: Literal[1] = 1
NODE_PATH, SESSION_PATH = "/ws/node", "/ws/session"
MAX_ATTACHMENTS = 64

_CONTROLS = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""What moves a terminal's cursor, or turns the direction of writing."""
_CONTROL = re.compile(f"[{_CONTROLS}]")
SHOWN = AfterValidator(partial(_CONTROL.sub, " "))
"""Blanks for control characters: who passes on another program's words is not at fault for them."""
ModelName = Annotated[str, StringConstraints(max_length=120, pattern=f"^[^{_CONTROLS}]*$")]
Name = Annotated[str, StringConstraints(max_length=120), SHOWN]
Line = Annotated[str, StringConstraints(max_length=2000), SHOWN]
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
RequestId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
Versions = Annotated[tuple[Annotated[int, Field(ge=0, le=2**31)], ...], Field(max_length=64)]
Attempt = Annotated[int, Field(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, Field(ge=1, le=24 * 3600 * 1000)]


class CloseCode(IntEnum):
    """Why the gateway ends a connection. 1001 and 1012: it goes away, connect again."""

    GOING_AWAY = 1001
    RESTART = 1012
    BAD_MESSAGE = 4400
    UNAUTHORIZED = 4401
    """The token is unknown, revoked, expired, or of the other kind. Trying again is no use."""
    SILENT = 4408
    """No heartbeat for three intervals."""
    REPLACED = 4409
    """The same node or session has connected anew."""
    TOO_LARGE = 4413
    VERSION = 4426
    """None of the versions offered is spoken here."""
    FULL = 4429
    """Too many connections: try another instance."""
    SLOW = 4431
    """It does not read what it is sent."""


class Capability(StrEnum):
    """What a node can do; `body` and `result` of each are in docs/how-to/nodes.md."""

    VISION = "vision"
    TEXT = "text"
    EMBEDDINGS = "embeddings"
    PAGE = "page"
    """A picture of a page becomes Markdown with its layout."""


class Part(BaseModel):
    """An object of the protocol. Fields that are not known mean nothing, and `null` is a field left out."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        if isinstance(data, dict) and None in data.values():
            return {name: value for name, value in data.items() if value is not None}
        return data


class Message(Part):
    """What all messages are."""

    v: Literal[1] = VERSION


class Attachment(Part):
    """A binary frame that follows."""

    name: Name = ""
    media_type: Annotated[str, StringConstraints(max_length=100), SHOWN] = "application/octet-stream"
    size: int = Field(ge=0, le=2**40)
    """In bytes."""


class WithAttachments(Message):
    """A message that binary frames may follow."""

    attachments: tuple[Attachment, ...] = Field(default=(), max_length=MAX_ATTACHMENTS)


class Offer(Part):
    """One thing that a node can do. `*` among the models: any model."""

    capability: Capability
    models: tuple[ModelName, ...] = Field(default=(), max_length=200)


class HeldJob(Part):
    """A job that a node still works on, or has a result of, when it connects again."""

    job_id: Id
    attempt: Attempt


class JobError(Part):
    """Why a job failed. `kind` as `ErrorKind`: permanent, transient, rate_limited, quota, cancelled."""

    code: Annotated[str, StringConstraints(max_length=64), SHOWN] = "failed"
    message: Line = ""
    kind: Literal["permanent", "transient", "rate_limited", "quota", "cancelled"] = "transient"
    retry_after_s: Annotated[float, Field(ge=0, le=86_400)] | None = None


MODEL_NOT_AVAILABLE, NODE_BUSY = "MODEL_NOT_AVAILABLE", "NODE_BUSY"
"""Codes of a node's error after which the gateway asks another node."""
NO_NODE, NODE_LOST, TIMED_OUT, CANCELLED, STATE_LOST = (
    "no_node",
    "node_lost",
    "timed_out",
    "cancelled",
    "state_lost",
)
"""Codes of the gateway's own errors."""


# Nodes to the gateway


class NodeRegister(Message):
    """The first message of a node."""

    type: Literal["node_register"] = "node_register"
    versions: Versions = (VERSION,)
    node_id: Id
    name: Name = ""
    slots: int = Field(ge=1, le=1024)
    """How many jobs at once."""
    offers: tuple[Offer, ...] = Field(min_length=1, max_length=16)
    software: Name = ""
    held: tuple[HeldJob, ...] = Field(default=(), max_length=2048)


class NodeHeartbeat(Message):
    """The node is there."""

    type: Literal["node_heartbeat"] = "node_heartbeat"


class NodeDrain(Message):
    """The node takes no more jobs; it finishes those that it has."""

    type: Literal["node_drain"] = "node_drain"


class JobAck(Message):
    """The job has arrived and waits for its turn."""

    type: Literal["job_ack"] = "job_ack"
    job_id: Id
    attempt: Attempt


class JobStarted(Message):
    """The node works on the job."""

    type: Literal["job_started"] = "job_started"
    job_id: Id
    attempt: Attempt


class NodePartial(Message):
    """A piece of the result, to be appended to those before it."""

    type: Literal["job_partial"] = "job_partial"
    job_id: Id
    attempt: Attempt
    text: Annotated[str, StringConstraints(max_length=65_536)]


class NodeResult(WithAttachments):
    """The job is done: `result`, or `error`. Sent again until `result_received` comes."""

    type: Literal["job_result"] = "job_result"
    job_id: Id
    attempt: Attempt
    result: dict[str, Any] | None = None
    error: JobError | None = None


# The gateway to nodes


class NodeWelcome(Message):
    """The node is registered."""

    type: Literal["welcome"] = "welcome"
    instance_id: str
    heartbeat_ms: int
    max_message_bytes: int
    max_attachment_bytes: int


class JobAssign(WithAttachments):
    """A job to do."""

    type: Literal["job_assign"] = "job_assign"
    job_id: Id
    attempt: Attempt
    capability: Capability
    model: ModelName = ""
    """Empty: the node's own choice."""
    body: dict[str, Any]
    timeout_ms: Milliseconds
    """Later the job is given to another node, and this one's result is dropped."""


class NodeCancel(Message):
    """Nobody waits for this attempt any more."""

    type: Literal["job_cancel"] = "job_cancel"
    job_id: Id
    attempt: Attempt
    reason: str = ""


class NodeResultReceived(Message):
    """A result has arrived, and need not be kept. `taken`: whether it counted; late ones do not."""

    type: Literal["result_received"] = "result_received"
    job_id: Id
    attempt: Attempt
    taken: bool


class Drain(Message):
    """The operator asks the node to finish what it has and to end."""

    type: Literal["drain"] = "drain"
    reason: str = ""


# Sessions to the gateway


class SessionOpen(Message):
    """The first message of a session. With the `session_id` of before, it goes on where it was."""

    type: Literal["session_open"] = "session_open"
    versions: Versions = (VERSION,)
    session_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    name: Name = ""


class JobRequest(WithAttachments):
    """A job to be done. The same `request_id` of the same token is the same job, however often it is sent."""

    type: Literal["job_request"] = "job_request"
    request_id: RequestId
    capability: Capability
    model: ModelName = ""
    body: dict[str, Any]
    timeout_ms: Milliseconds = 120_000
    """Until the answer, with all attempts and waiting."""
    attempt_timeout_ms: Milliseconds | None = None
    if_no_node: Literal["wait", "error"] = "wait"
    """What to do while no node offers this: wait until `timeout_ms`, or say so at once."""
    partials: bool = False


class SessionCancel(Message):
    """The session does not want the answer any more. The job ends if nobody else does."""

    type: Literal["job_cancel"] = "job_cancel"
    request_id: RequestId


class SessionHeartbeat(Message):
    """Harmless; WebSocket pings do as well."""

    type: Literal["session_heartbeat"] = "session_heartbeat"


# The gateway to sessions


class SessionWelcome(Message):
    """The session is open."""

    type: Literal["welcome"] = "welcome"
    instance_id: str
    max_message_bytes: int
    max_attachment_bytes: int
    max_jobs: int


class JobAccepted(Message):
    """The request is known, as this job."""

    type: Literal["job_accepted"] = "job_accepted"
    request_id: str
    job_id: str
    state: str


class SessionPartial(Message):
    """A piece of the result of this attempt; pieces of an earlier attempt are void."""

    type: Literal["job_partial"] = "job_partial"
    request_id: str
    attempt: int
    text: str


class SessionResult(WithAttachments):
    """The answer: `result`, or `error`."""

    type: Literal["job_result"] = "job_result"
    request_id: str
    job_id: str = ""
    attempt: int = 0
    node_id: str = ""
    result: dict[str, Any] | None = None
    error: JobError | None = None


class Error(Message):
    """What is wrong, before the connection is closed for it."""

    type: Literal["error"] = "error"
    code: str
    message: str


FromNode = NodeRegister | NodeHeartbeat | NodeDrain | JobAck | JobStarted | NodePartial | NodeResult
ToNode = NodeWelcome | JobAssign | NodeCancel | NodeResultReceived | Drain | Error
FromSession = SessionOpen | JobRequest | SessionCancel | SessionHeartbeat
ToSession = SessionWelcome | JobAccepted | SessionPartial | SessionResult | Error

from_node: TypeAdapter[FromNode] = TypeAdapter(Annotated[FromNode, Field(discriminator="type")])
to_node: TypeAdapter[ToNode] = TypeAdapter(Annotated[ToNode, Field(discriminator="type")])
from_session: TypeAdapter[FromSession] = TypeAdapter(Annotated[FromSession, Field(discriminator="type")])
to_session: TypeAdapter[ToSession] = TypeAdapter(Annotated[ToSession, Field(discriminator="type")])

AnyMessage = TypeVar("AnyMessage")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


class BadMessage(Exception):
    """What came is not a message of this protocol; `str` says why, and quotes nothing of it."""

    def __init__(self, reason: str, close_code: CloseCode = CloseCode.BAD_MESSAGE) -> None:
        super().__init__(reason)
        self.close_code = close_code


def parse(text: str | bytes, kind: TypeAdapter[AnyMessage]) -> AnyMessage | None:
    """The message in a text frame; None for a type that is not known, which is passed over. Raises `BadMessage`.

    What is taken can be passed on: nesting beyond 200 is not taken, and half a character becomes U+FFFD.
    """
    try:
        foreign_json.check(text)
    except foreign_json.TooManyParts as error:
        raise BadMessage(f"a text frame is not read: {error}", CloseCode.TOO_LARGE) from None
    try:
        try:
            data = from_json(text)
        except ValueError:
            data = from_json(
                _HALF_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", json.dumps(json.loads(text), ensure_ascii=False))
            )
    except (ValueError, RecursionError):
        raise BadMessage("a text frame is not JSON, or is nested too deeply") from None
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise BadMessage("a message is a JSON object with a type")
    if data.get("v") not in (None, VERSION):  # it may be a list
        raise BadMessage(f"messages have v = {VERSION}", CloseCode.VERSION)
    try:
        return kind.validate_python(data, strict=False)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        if first["type"] == "union_tag_invalid":
            return None
        where = ".".join(str(part)[:40] for part in first["loc"][1:4])
        raise BadMessage(f"{data['type'][:40]!a}: {where}: {first['msg'][:200]}") from None


def encode(message: Message) -> str:
    """The text frame of a message."""
    return message.model_dump_json(exclude_none=True)
