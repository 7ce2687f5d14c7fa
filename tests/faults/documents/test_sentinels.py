"""Redis behind Sentinel: the master dies under load, with messages and leases that its replica has not received."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from pipeline.operations.providers import OK, WARN
from pipeline.standalone.doctor import checks
from tests.faults.flow import SQLITE, START_S, Flow, settings
from tests.support.provider_server import ProviderServer
from tests.support.sentinels import NAME, PASSWORD, SENTINEL_PASSWORD, Sentinels
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, settings(SWEEP_INTERVAL_S="1", PRESENCE_TTL_S="60")]
PAGES = 30


@pytest.fixture
def sentinels(data_dir: Path) -> Iterator[Sentinels]:
    with Sentinels(data_dir / "redis") as group:
        yield group


@pytest.fixture
def redis_url(sentinels: Sentinels) -> str:
    return sentinels.url


@SQLITE
def test_a_master_that_dies_under_load_costs_time_and_nothing_else(
    stack: Stack, flow: Flow, provider: ProviderServer, sentinels: Sentinels
) -> None:
    stack.start(*FLEET, "ai-2", "both-1")
    assert doctors_view(flow)["redis master"] == (OK, f"{NAME} at 127.0.0.1:{sentinels.master.port}, 1 replica")
    provider.configure({"latency_s": 4.0})
    documents: list[str] = []
    images: dict[str, int] = {}
    for name in ("other", "other", "test"):
        documents.append(flow.submit(PAGES, f"{len(documents)}.pdf", name))
        images |= wait_until(lambda: last_images(flow, documents), START_S, "the document is split")
    last = documents[-1]
    at_work = wait_until(lambda: all_lanes(flow, last), START_S, "all lanes of the document are at work")
    sentinels.sentinels[0].kill()
    sentinels.cut_off_replica()
    provider.configure({"latency_s": 0.3})
    wait_until(lambda: not at_work & flow.held(last), START_S, "the lanes have ended their pages")
    flow.wait_for_calls(len(provider.records) + len(at_work))
    sentinels.master.kill()
    under_way = {numbered(i, page) for i, key in enumerate(documents) for page in flow.held(key)}
    assert under_way
    sentinels.wait_for_failover()
    for document_id in documents:
        flow.wait_for_status(document_id)
        flow.assert_exactly_once(document_id)
    flow.assert_paid_once(images, repeated=under_way)
    assert all(running.alive for running in stack.running)
    checks = doctors_view(flow)
    assert checks["redis master"] == (WARN, f"{NAME} at 127.0.0.1:{sentinels.replica.port}, 0 replicas")
    assert checks["sentinels"][1].startswith("2 of 3 name a master; 127.0.0.1:")
    assert not with_secrets(str(checks).encode())
    # Logs, database, results, and the journal of all writes to Redis.
    written = [path for path in flow.folder.rglob("*") if path.is_file() and path.suffix != ".conf"]
    assert {path.suffix for path in written} >= {".log", ".db", ".aof", ".md"}
    assert not [path for path in written if with_secrets(path.read_bytes())]


def all_lanes(flow: Flow, document_id: str) -> set[int]:
    """Return the pages at which the document's lanes work; empty until all are at work."""
    held = flow.held(document_id)
    return held if len(held) == flow.context.settings.providers["test"].concurrency else set()


def last_images(flow: Flow, documents: list[str]) -> dict[str, int]:
    """Return pages of the last document by the hashes of their pictures; empty until it is split."""
    found = flow.images(documents[-1])
    return {digest: numbered(len(documents) - 1, page) for digest, page in found.items()}


def numbered(document: int, page: int) -> int:
    """Number a page among the pages of all documents."""
    return document * 1000 + page


def doctors_view(flow: Flow) -> dict[str, tuple[str, str]]:
    return {check.name: (check.result, check.found) for check in checks(flow.context.settings)}


def with_secrets(written: bytes) -> bool:
    secrets = (PASSWORD, SENTINEL_PASSWORD)
    return any(form.encode() in written for secret in secrets for form in (secret, quote(secret, safe="")))
