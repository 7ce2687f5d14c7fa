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
PAGES, DOCUMENTS = 30, 3


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
    stack.start(*FLEET, "ai-2")
    assert doctors_view(flow)["redis master"] == (OK, f"{NAME} at 127.0.0.1:{sentinels.master.port}, 1 replica")
    provider.configure({"latency_s": 3.0})
    documents = [flow.submit(PAGES, "0.pdf")]
    lanes = flow.context.settings.providers["test"].concurrency
    wait_until(lambda: len(flow.held(documents[0])) == lanes, START_S, "all lanes of the document are at work")
    sentinels.sentinels[0].kill()
    sentinels.cut_off_replica()
    provider.configure({"latency_s": 0.3})
    documents += [flow.submit(PAGES, f"{number}.pdf") for number in range(1, DOCUMENTS)]
    flow.wait_for_calls(30)
    images = wait_until(lambda: all_images(flow, documents), START_S, "all documents are split")
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


def all_images(flow: Flow, documents: list[str]) -> dict[str, int]:
    """Return pages by the hashes of their pictures; empty until all documents are split."""
    numbers = {
        digest: numbered(i, page)
        for i, document_id in enumerate(documents)
        for digest, page in flow.images(document_id).items()
    }
    return numbers if len(numbers) == PAGES * DOCUMENTS else {}


def numbered(document: int, page: int) -> int:
    """Number a page among the pages of all documents."""
    return document * 1000 + page


def doctors_view(flow: Flow) -> dict[str, tuple[str, str]]:
    return {check.name: (check.result, check.found) for check in checks(flow.context.settings)}


def with_secrets(written: bytes) -> bool:
    secrets = (PASSWORD, SENTINEL_PASSWORD)
    return any(form.encode() in written for secret in secrets for form in (secret, quote(secret, safe="")))
