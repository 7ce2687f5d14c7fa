"""What is sent, by the Standard Webhooks specification: the body and its signature."""

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
    """A secret that nobody can guess."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def headers(signers: Sequence[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Id, time and signatures of a message, one by each secret."""
    timestamp = str(int(at.timestamp()))
    told = f"{message_id}.{timestamp}.".encode() + body
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(_signature(one, told) for one in signers),
    }


def _signature(secret: str, told: bytes) -> str:
    key = base64.b64decode(secret.removeprefix(PREFIX))
    return f"v1,{base64.b64encode(hmac.new(key, told, hashlib.sha256).digest()).decode()}"


def body(kind: str, at: datetime, data: Mapping[str, Any]) -> bytes:
    """The same bytes for the same event, however often it is sent."""
    message = {"type": kind, "timestamp": at.isoformat(), "data": dict(data)}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
