"""The messages between nodes, gateway and sessions: version 1, as docs/reference/node-protocol.md describes it.

Each message is a text frame with a JSON object. Its `attachments` list the binary frames that follow it, in order,
before any other frame. Receivers ignore messages of unknown types, and unknown fields.
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
"""Characters that move a terminal's cursor or change the direction of text."""
_CONTROL = re.compile(f"[{_CONTROLS}]")
SHOWN = AfterValidator(partial(_CONTROL.sub, " "))
"""Replaces control characters by blanks. The sender may forward another program's text, so they are not an error."""
ModelName = Annotated[str, StringConstraints(max_length=120, pattern=f"^[^{_CONTROLS}]*$")]
Name = Annotated[str, StringConstraints(max_length=120), SHOWN]
Line = Annotated[str, StringConstraints(max_length=2000), SHOWN]
Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
RequestId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
Versions = Annotated[tuple[Annotated[int, Field(ge=0, le=2**31)], ...], Field(max_length=64)]
Attempt = Annotated[int, Field(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, Field(ge=1, le=24 * 3600 * 1000)]


class CloseCode(IntEnum):
    """Why the gateway closes a connection. 1001 and 1012: the instance shuts down; connect to another."""

    GOING_AWAY = 1001
    RESTART = 1012
    BAD_MESSAGE = 4400
    UNAUTHORIZED = 4401
    """The token is unknown, revoked, expired, or of the other kind. A retry fails as well."""
    SILENT = 4408
    """The node sent no heartbeat for three intervals."""
    REPLACED = 4409
    """The same node or session opened a newer connection."""
    TOO_LARGE = 4413
    VERSION = 4426
    """The gateway speaks none of the offered versions."""
    FULL = 4429
    """Too many connections: try another instance."""
    SLOW = 4431
    """The client reads too slowly."""


class Capability(StrEnum):
    """What a node can do. docs/reference/node-protocol.md describes the `body` and `result` of each."""

    VISION = "vision"
    TEXT = "text"
    EMBEDDINGS = "embeddings"
    PAGE = "page"
    """Turn a picture of a page into Markdown with its layout."""


class Part(BaseModel):
    """An object of the protocol. It ignores unknown fields and reads `null` as an absent field."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        if isinstance(data, dict) and None in data.values():
            return {name: value for name, value in data.items() if value is not None}
        return data


class Message(Part):
    """The base of all messages."""

    v: Literal[1] = VERSION


class Attachment(Part):
    """A binary frame that follows the message. `size` is in bytes."""

    name: Name = ""
    media_type: Annotated[str, StringConstraints(max_length=100), SHOWN] = "application/octet-stream"
    size: int = Field(ge=0, le=2**40)


class WithAttachments(Message):
    """A message that binary frames may follow."""

    attachments: tuple[Attachment, ...] = Field(default=(), max_length=MAX_ATTACHMENTS)


class Offer(Part):
    """A capability of a node, with its models. `*` among the models stands for any model."""

    capability: Capability
    models: tuple[ModelName, ...] = Field(default=(), max_length=200)


class HeldJob(Part):
    """A job that a reconnecting node still works on, or whose result it still holds."""

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
    """How many jobs the node does at once."""
    offers: tuple[Offer, ...] = Field(min_length=1, max_length=16)
    software: Name = ""
    held: tuple[HeldJob, ...] = Field(default=(), max_length=2048)


class NodeHeartbeat(Message):
    """A node's sign of life."""

    type: Literal["node_heartbeat"] = "node_heartbeat"


class NodeDrain(Message):
    """The node takes no new jobs and finishes those that it has."""

    type: Literal["node_drain"] = "node_drain"


class JobAck(Message):
    """The job has arrived at the node."""

    type: Literal["job_ack"] = "job_ack"
    job_id: Id
    attempt: Attempt


class JobStarted(Message):
    """The node works on the job."""

    type: Literal["job_started"] = "job_started"
    job_id: Id
    attempt: Attempt


class NodePartial(Message):
    """A piece of the result. It follows the pieces sent before."""

    type: Literal["job_partial"] = "job_partial"
    job_id: Id
    attempt: Attempt
    text: Annotated[str, StringConstraints(max_length=65_536)]


class NodeResult(WithAttachments):
    """The outcome of a job: `result` or `error`. The node resends it until `result_received` arrives."""

    type: Literal["job_result"] = "job_result"
    job_id: Id
    attempt: Attempt
    result: dict[str, Any] | None = None
    error: JobError | None = None


# The gateway to nodes


class NodeWelcome(Message):
    """The gateway registered the node."""

    type: Literal["welcome"] = "welcome"
    instance_id: str
    heartbeat_ms: int
    max_message_bytes: int
    max_attachment_bytes: int


class JobAssign(WithAttachments):
    """The gateway gives a job to the node."""

    type: Literal["job_assign"] = "job_assign"
    job_id: Id
    attempt: Attempt
    capability: Capability
    model: ModelName = ""
    """Empty: the node chooses."""
    body: dict[str, Any]
    timeout_ms: Milliseconds
    """After this time the gateway gives the job to another node and drops this node's result."""


class NodeCancel(Message):
    """The gateway no longer needs this attempt."""

    type: Literal["job_cancel"] = "job_cancel"
    job_id: Id
    attempt: Attempt
    reason: str = ""


class NodeResultReceived(Message):
    """The gateway received a result, so the node may drop it. `taken` is false for a result that came too late."""

    type: Literal["result_received"] = "result_received"
    job_id: Id
    attempt: Attempt
    taken: bool


class Drain(Message):
    """The operator asks the node to finish its jobs and to exit."""

    type: Literal["drain"] = "drain"
    reason: str = ""


# Sessions to the gateway


class SessionOpen(Message):
    """The first message of a session. A known `session_id` resumes that session."""

    type: Literal["session_open"] = "session_open"
    versions: Versions = (VERSION,)
    session_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    name: Name = ""


class JobRequest(WithAttachments):
    """A session requests a job. A token's repeated `request_id` names the same job, however often sessions send it."""

    type: Literal["job_request"] = "job_request"
    request_id: RequestId
    capability: Capability
    model: ModelName = ""
    body: dict[str, Any]
    timeout_ms: Milliseconds = 120_000
    """The time until the answer, with waiting and all attempts."""
    attempt_timeout_ms: Milliseconds | None = None
    if_no_node: Literal["wait", "error"] = "wait"
    """While no node offers the capability and model: wait until `timeout_ms`, or fail at once."""
    partials: bool = False


class SessionCancel(Message):
    """The session no longer needs the answer. The job ends unless other sessions wait for it."""

    type: Literal["job_cancel"] = "job_cancel"
    request_id: RequestId


class SessionHeartbeat(Message):
    """A session's sign of life. WebSocket pings serve as well."""

    type: Literal["session_heartbeat"] = "session_heartbeat"


# The gateway to sessions


class SessionWelcome(Message):
    """The gateway opened the session."""

    type: Literal["welcome"] = "welcome"
    instance_id: str
    max_message_bytes: int
    max_attachment_bytes: int
    max_jobs: int


class JobAccepted(Message):
    """The gateway answers the request by this job, which is new or, for a repeated request, already exists."""

    type: Literal["job_accepted"] = "job_accepted"
    request_id: str
    job_id: str
    state: str


class SessionPartial(Message):
    """A piece of this attempt's result. It voids the pieces of earlier attempts."""

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
    """The reason why the gateway is about to close the connection."""

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
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadMessage(Exception):
    """A frame is not a message of this protocol. `str` gives the reason and quotes nothing of the frame."""

    def __init__(self, reason: str, close_code: CloseCode = CloseCode.BAD_MESSAGE) -> None:
        super().__init__(reason)
        self.close_code = close_code


def parse(text: str | bytes, kind: TypeAdapter[AnyMessage]) -> AnyMessage | None:
    """Read the message in a text frame. Returns None for an unknown type. Raises `BadMessage`.

    The result can be encoded again: `parse` refuses nesting beyond 200 and replaces lone surrogates by U+FFFD.
    """
    try:
        foreign_json.check(text)
    except foreign_json.TooManyParts as error:
        raise BadMessage(f"a text frame is too large: {error}", CloseCode.TOO_LARGE) from None
    try:
        try:
            data = from_json(text)
        except ValueError:
            data = from_json(
                _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", json.dumps(json.loads(text), ensure_ascii=False))
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
        field = ".".join(str(part)[:40] for part in first["loc"][1:4])
        raise BadMessage(f"{data['type'][:40]!a}: {field}: {first['msg'][:200]}") from None


def encode(message: Message) -> str:
    """Encode a message as a text frame."""
    return message.model_dump_json(exclude_none=True)
