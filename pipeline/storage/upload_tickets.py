"""Uploads in two steps, in Redis: a ticket lets its holder send one file without a key, and the file then waits for the
caller who asked for the ticket."""

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass

from pipeline.storage.context import Context

PREFIX = "pstu_"
TICKET_S = 600
"""The lifetime of a ticket, in seconds."""
WAITS_S = 3600
"""How long a file waits, in seconds. Cleaning removes it later."""


@dataclass(frozen=True)
class Ticket:
    """The right to send one file. `owner`: the id of the caller who asked for it, `owner_name` their key's name."""

    upload_id: str
    owner: str
    owner_name: str
    has_key: bool
    filename: str


@dataclass(frozen=True)
class Waiting:
    """A file that has arrived. `path`: its name in the upload folder."""

    owner: str
    filename: str
    path: str
    sha256: str


def issue(context: Context, owner: str, owner_name: str, filename: str, *, has_key: bool) -> tuple[str, Ticket]:
    """Return (secret, ticket). The secret counts once, for `TICKET_S` seconds."""
    secret, ticket = (
        PREFIX + secrets.token_urlsafe(32),
        Ticket(secrets.token_hex(8), owner, owner_name, has_key, filename),
    )
    context.redis.set(_ticket(secret), json.dumps(asdict(ticket)), ex=TICKET_S)
    return secret, ticket


def find(context: Context, secret: str) -> Ticket | None:
    """Return the ticket with this secret; None if it is unknown, used or too old."""
    found = context.redis.get(_ticket(secret))
    return Ticket(**json.loads(found)) if found else None


def take(context: Context, secret: str) -> Ticket | None:
    """Use the ticket up, and return it; None as `find`. Of several callers, one gets it."""
    found = context.redis.getdel(_ticket(secret))
    return Ticket(**json.loads(found)) if found else None


def keep(context: Context, upload_id: str, file: Waiting) -> None:
    """Let the file wait for its owner, for `WAITS_S` seconds."""
    context.redis.set(_file(upload_id), json.dumps(asdict(file)), ex=WAITS_S)


def claim(context: Context, upload_id: str, owner: str) -> Waiting | None:
    """Take the file that waits for this owner; None if none does. Of several callers, one gets it."""
    found = context.redis.get(_file(upload_id))
    if not found or json.loads(found)["owner"] != owner:
        return None
    taken = context.redis.getdel(_file(upload_id))
    return Waiting(**json.loads(taken)) if taken else None


def _ticket(secret: str) -> str:
    return f"penstock:uploads:ticket:{hashlib.sha256(secret.encode()).hexdigest()}"


def _file(upload_id: str) -> str:
    return f"penstock:uploads:file:{upload_id}"
