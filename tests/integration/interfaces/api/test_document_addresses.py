"""Files at addresses that a request names."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from starlette.testclient import TestClient

from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, problem
from tests.support.samples import text_pdf


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """A server that writes no log."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a PDF on this machine."""
    text_pdf(tmp_path / "report.pdf", [["text"]])
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/report.pdf"
        server.shutdown()


def test_nothing_is_fetched_unless_that_is_allowed(api: TestClient, served: str) -> None:
    problem(api.post(f"{DOCUMENTS}/url", json={"url": served}), 403, "not_allowed")


class TestAllowed:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__FETCH": "true"}

    def test_files_are_never_fetched_from_this_machine(self, api: TestClient, served: str) -> None:
        answer = api.post(f"{DOCUMENTS}/url", json={"url": served})
        assert answer.status_code in {403, 422}
        assert api.get(DOCUMENTS).json()["items"] == []
        problem(api.post(f"{DOCUMENTS}/url", json={"url": "file:///etc/passwd"}), 422, "bad_url")


class TestPrivate:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__FETCH": "true", "PENSTOCK_API__FETCH_PRIVATE": '["127.0.0.0/8"]'}

    def test_files_are_fetched_from_an_allowed_network(self, api: TestClient, served: str) -> None:
        sent = api.post(f"{DOCUMENTS}/url", json={"url": served, "page_range": "1"})
        assert (sent.status_code, sent.json()["filename"]) == (202, "report.pdf")
        assert sent.headers["location"] == f"{DOCUMENTS}/{sent.json()['id']}"
