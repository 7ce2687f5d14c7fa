"""Messages by the Standard Webhooks specification: the body and its signature."""

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

PREFIX = "whsec_"
SECRET_BYTES = 32
TEST = "webhook.test"


def new_secret() -> str:
    """Return a new random secret of an endpoint: `whsec_` and Base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def plain_headers(message_id: str, further: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a callback's message: without a signature, since its receiver has no secret."""
    return {**further, "content-type": "application/json", "webhook-id": message_id}


def headers(signers: Sequence[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers of a message: its id, `at`, the time of this attempt, and one signature by each secret in
    `signers`."""
    timestamp = str(int(at.timestamp()))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(_signature(secret, signed) for secret in signers),
    }


def _signature(secret: str, signed: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def body(kind: str, at: datetime, data: Mapping[str, Any]) -> bytes:
    """Return the JSON body of a message; the same arguments give the same bytes. `at`: the time of the event."""
    message = {"type": kind, "timestamp": at.isoformat(), "data": dict(data)}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
