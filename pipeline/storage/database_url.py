"""Parse and display the database's URL, never with its password in an error."""

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pipeline.engine.errors import UserError

_SERVER, _FILE = "postgresql+psycopg", "sqlite"
_DRIVERS = {
    "postgresql": _SERVER,
    "postgres": _SERVER,
    _SERVER: _SERVER,
    _FILE: _FILE,
    "sqlite+pysqlite": _FILE,
}
_ESCAPES = "in a password, write / as %2F, # as %23, ? as %3F, @ as %40, : as %3A"


def read(url: str) -> URL:
    """Parse the URL and set its driver.

    Raises `UserError` without quoting the URL, which may hold a password anywhere.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # From None: SQLAlchemy quotes the URL that it cannot parse.
        raise _wrong(f"it cannot be parsed, or a port is not a number; {_ESCAPES}") from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise _wrong("it must begin with postgresql:// or sqlite://")
    if "@" in (parsed.host or ""):
        raise _wrong(f"a special character is not escaped; {_ESCAPES}")
    return parsed.set(drivername=driver)


def shown(url: URL) -> str:
    """Return the URL for people: without the password, and without options, which may contain another."""
    return url.set(query={}).render_as_string(hide_password=True)


def _wrong(why: str) -> UserError:
    return UserError(
        f"PENSTOCK_DATABASE_URL is not a database URL (postgresql://user:password@host/name): {why}", code="settings"
    )
