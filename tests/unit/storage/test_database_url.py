"""A database's URL is shown without its password, at any place in the URL."""

import pytest

from pipeline.engine.errors import UserError
from pipeline.storage import database_url

SECRET = "Zq9very"


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgresql://u:p%40ss@h:5433/x", "postgresql+psycopg"),
        ("postgres://h/x", "postgresql+psycopg"),
        ("postgresql+psycopg://u:p@[::1]/x?sslmode=require", "postgresql+psycopg"),
        ("sqlite:////data/penstock.db", "sqlite"),
    ],
)
def test_servers_and_files(url: str, driver: str) -> None:
    assert database_url.read(url).drivername == driver


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (SECRET, "it cannot be parsed, or a port is not a number"),
        (f"postgresql://u:{SECRET}@h:{SECRET}/x", "it cannot be parsed, or a port is not a number"),
        (f"postgresql://u:a@{SECRET}@h/x", "@ as %40"),
        (f"mysql://u:{SECRET}@h/x", "must begin with postgresql:// or sqlite://"),
        (f"postgresql+psycopg2://u:{SECRET}@h/x", "must begin with"),
        (f"{SECRET}://u@h/x", "must begin with"),
    ],
)
def test_the_message_about_a_bad_url_contains_nothing_of_it(url: str, message: str) -> None:
    with pytest.raises(UserError, match="PENSTOCK_DATABASE_URL is not a database URL") as caught:
        database_url.read(url)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_database_url_is_shown_without_passwords() -> None:
    url = database_url.read(f"postgresql://u:{SECRET}@h:5433/x?password={SECRET}&sslmode=require")
    assert database_url.shown(url) == "postgresql+psycopg://u:***@h:5433/x"
