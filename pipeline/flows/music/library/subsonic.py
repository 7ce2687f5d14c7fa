"""A thin client for Subsonic and OpenSubsonic servers, such as Navidrome, which can list all songs.

The password never leaves this process: a call carries a salt and the MD5 of password and salt. Servers wrap errors in
HTTP 200; the client turns each into a sentence, without the address's query, which holds the token.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx2

from pipeline.engine import foreign_json
from pipeline.engine.errors import UserError
from pipeline.flows.music.library.songs import SERVER, LibraryError, Listing, SongTags
from pipeline.providers import call_loop
from pipeline.providers.reply_limit import ReplyLimit
from pipeline.reading.web.fetch import trusted
from pipeline.settings import MusicSettings

# httpx2 logs the address of every call, which contains the token.
logging.getLogger("httpx2").setLevel(logging.WARNING)

API_VERSION = "1.16.1"
CLIENT = "penstock"
MAX_REPLY_BYTES = 64 * 2**20
MAX_SONGS = 5_000_000
"""The client takes a longer listing for endless."""
_MAX_BARREN = 50
"""Pages in a row without a song."""
_SENTENCES = {
    10: ("protocol", "a required parameter is missing"),
    20: ("protocol", "the server wants a newer client"),
    30: ("protocol", f"the server is too old: it does not speak version {API_VERSION}"),
    40: ("wrong_password", "wrong user or password: check PENSTOCK_MUSIC__USER and PENSTOCK_MUSIC__PASSWORD"),
    41: ("token_auth", "this user cannot sign in by token (LDAP users cannot): use another user"),
    42: ("token_auth", "the server does not take this way of signing in"),
    43: ("token_auth", "the server takes one way of signing in at a time"),
    44: ("wrong_password", "the key is not valid"),
    50: ("not_allowed", "the user may not do this"),
    60: ("not_allowed", "the server's trial period is over"),
    70: ("protocol", "the server does not know what was asked for"),
}


class SubsonicServer:
    """A client of one server, as one user. Leaving the context closes the connections."""

    name = SERVER
    unreadable = 0

    def __init__(self, settings: MusicSettings) -> None:
        if not settings.server_url:
            raise UserError("no music server is named: set PENSTOCK_MUSIC__SERVER_URL", code="no_library")
        if not settings.user:
            raise UserError("the music server needs a user: set PENSTOCK_MUSIC__USER", code="no_user")
        self._settings = settings
        limit = ReplyLimit(
            MAX_REPLY_BYTES, lambda fault, _: LibraryError(f"the music server {fault}", code="bad_reply")
        )
        self._client = httpx2.AsyncClient(
            timeout=settings.timeout_s,
            verify=trusted(),
            follow_redirects=False,
            event_hooks={"response": [limit.apply]},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call_loop.run(self._client.aclose())

    def ping(self) -> str:
        """Sign in, and return the server's name and version. Raises `LibraryError`."""
        reply = self._call("ping")
        return f"{reply.get('type') or 'Subsonic'} {reply.get('serverVersion') or reply.get('version') or ''}".strip()

    def songs(self) -> Iterator[list[SongTags]]:
        """Yield all songs, in pages of up to `page_size`. Raises `LibraryError`, also for a list without an end."""
        offset = barren = 0
        while True:
            page = self._page(offset)
            if not page:
                # Only an empty page marks the end: the server may have cut a short one.
                return
            songs = [song for item in page if (song := _song(item)) is not None]
            size = self._settings.page_size
            for start in range(0, len(songs), size):  # some servers return more songs than requested
                yield songs[start : start + size]
            offset += len(page)
            barren = 0 if songs else barren + 1
            if offset > MAX_SONGS or barren > _MAX_BARREN:
                raise LibraryError("the music server's list of songs does not come to an end", code="bad_reply")

    def _page(self, offset: int) -> list[Any]:
        reply = self._call(
            "search3", query="", artistCount=0, albumCount=0, songCount=self._settings.page_size, songOffset=offset
        )
        result = reply.get("searchResult3")
        songs = result.get("song", []) if isinstance(result, dict) else [] if result is None else None
        if not isinstance(songs, list):
            raise LibraryError(f"cannot read the music server's list of songs from {offset} on", code="bad_reply")
        return songs

    def count(self) -> Listing | None:
        """Return the server's number of songs and its state of scanning; None if it does not report them.

        Raises `LibraryError` for a transient error only.
        """
        try:
            status = self._call("getScanStatus").get("scanStatus")
        except LibraryError as error:
            if error.transient:
                raise
            return None
        count = status.get("count") if isinstance(status, dict) else None
        if not isinstance(status, dict) or type(count) is not int or not 0 <= count <= MAX_SONGS:
            return None
        return Listing(count, bool(status.get("scanning")), str(status.get("lastScan") or "")[:100])

    def _call(self, method: str, **parameters: str | int) -> dict[str, Any]:
        async def exchange() -> tuple[int, bytes]:
            # A server that trickles restarts the client's own limit with every byte.
            async with asyncio.timeout(self._settings.timeout_s):
                response = await self._client.get(address, params=self._signed() | parameters)
            return response.status_code, response.content

        address = f"{self._settings.server_url}/rest/{method}.view"
        try:
            status, body = call_loop.run(exchange())
        except (httpx2.TimeoutException, TimeoutError):
            raise self._unreachable(f"it did not answer within {self._settings.timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # Not chained: the error holds the request, with the token.
            raise self._unreachable(f"{type(error).__name__}: {error}".removesuffix(": ")) from None
        return self._read(status, body)

    def _signed(self) -> dict[str, str | int]:
        salt = secrets.token_hex(8)
        secret = self._settings.password.get_secret_value() + salt
        token = hashlib.md5(secret.encode(), usedforsecurity=False).hexdigest()
        return {"u": self._settings.user, "t": token, "s": salt, "v": API_VERSION, "c": CLIENT, "f": "json"}

    def _read(self, status: int, body: bytes) -> dict[str, Any]:
        reply = _json_reply(body)
        if reply is None:
            raise self._not_subsonic(status, body)
        if reply.get("status") == "ok":
            return reply
        error = reply.get("error")
        error = error if isinstance(error, dict) else {}
        number = error.get("code")
        code, sentence = _SENTENCES.get(number if isinstance(number, int) else 0, ("server_error", "an error"))
        text = str(error.get("message") or "")[:200]
        detail = f" (it says: {text})" if text else ""
        message = f"the music server at {self._settings.server_url} reports: {sentence}{detail}"
        raise LibraryError(message, code=code, transient=code == "server_error")

    def _unreachable(self, reason: str) -> "LibraryError":
        message = f"the music server at {self._settings.server_url} cannot be reached ({reason}): is it up?"
        return LibraryError(message, code="unreachable", transient=True)

    def _not_subsonic(self, status: int, body: bytes) -> "LibraryError":
        where = self._settings.server_url
        if status >= 500 or status == 429:
            return LibraryError(f"the music server at {where} failed (HTTP {status})", code="failing", transient=True)
        if status in {401, 403}:
            message = f"the music server at {where} refuses access (HTTP {status}): is there a login in front of it?"
            return LibraryError(message, code="not_allowed")
        kind = "a web page" if body.lstrip()[:1] == b"<" else "something else"
        message = (
            f"{where} answers with {kind} instead of the Subsonic API (HTTP {status}): "
            "check PENSTOCK_MUSIC__SERVER_URL, the part of the address before /rest"
        )
        return LibraryError(message, code="not_subsonic")


def _json_reply(body: bytes) -> dict[str, Any] | None:
    """Return the object in the envelope `subsonic-response`; None for any other body."""
    try:
        data = foreign_json.loads(body)
    except (ValueError, RecursionError):
        return None
    reply = data.get("subsonic-response") if isinstance(data, dict) else None
    return reply if isinstance(reply, dict) else None


def _song(item: object) -> SongTags | None:
    """Return the tags of a listed song; None for other items."""
    fields = item if isinstance(item, dict) else {}
    if not fields.get("id") or fields.get("isDir") or fields.get("isVideo"):
        return None
    return SongTags.of(
        str(fields["id"]),
        title=fields.get("title"),
        artist=fields.get("artist"),
        album=fields.get("album"),
        genre=fields.get("genre"),
        year=fields.get("year"),
        duration_s=fields.get("duration"),
        path=fields.get("path"),
        musicbrainz_id=fields.get("musicBrainzId"),
    )
