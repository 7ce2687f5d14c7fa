"""The documents flow converts a scan through a gateway and two nodes, one of which dies half-way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.flows.documents import queries
from pipeline.flows.documents.states import DocumentStatus
from pipeline.nodes.job import JobState
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.tokens import TokenKind
from pipeline.storage.context import Context
from tasks import documents
from tests.faults.nodes.fleet import Fleet
from tests.support.gateway import token
from tests.support.redis_server import free_port
from tests.support.samples import picture_of
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
PAGES = 4
DONE_S = 120
AT_WORK = {JobState.DISPATCHED, JobState.ACCEPTED, JobState.RUNNING}


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def settings_env(port: int) -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDER": "test",
        "PENSTOCK_PROVIDERS__TEST__KIND": "nodes",
        "PENSTOCK_PROVIDERS__TEST__BASE_URL": f"ws://127.0.0.1:{port}",
        "PENSTOCK_PROVIDERS__TEST__IMAGE_DPI": "72",
        "PENSTOCK_PROVIDERS__TEST__CONCURRENCY": "4",
        "PENSTOCK_SWEEP_INTERVAL_S": "1",
        "PENSTOCK_PRESENCE_TTL_S": "3",
        "PENSTOCK_PRESENCE_INTERVAL_S": "0.5",
    }


@pytest.fixture
def fleet(data_dir: Path, context: Context, settings_env: dict[str, str], port: int) -> Iterator[Fleet]:
    """A gateway at the provider's address, with a token for the workers."""
    secrets = (token(context, TokenKind.NODE, "nodes"), token(context, TokenKind.SESSION, "workers"))
    settings = context.settings
    env = {**settings_env, "PENSTOCK_PROVIDERS__TEST__API_KEY": secrets[1]}
    with Stack(data_dir, settings.database_url, settings.redis_url, **env) as stack:
        yield Fleet(stack, context, data_dir, *secrets, ports={"a": port})


def scan(path: Path) -> Path:
    """Return pages that are pictures, each with its own words."""
    pictures = [picture_of([f"This is page {number}", "of a scanned letter"], (600, 200)) for number in range(PAGES)]
    pictures[0].save(path, format="PDF", resolution=72, save_all=True, append_images=pictures[1:])
    return path


def start_node(fleet: Fleet, name: str) -> None:
    """`penstock node` with recognition on this machine, one page at a time."""
    arguments = ("node", "--gateway", fleet.urls[0], "--provider", "local", "--slots", "1", "--id", name)
    fleet.stack.run(name, "tests.support.penstock_process", *arguments, PENSTOCK_NODE_TOKEN=fleet.node_token)


def converted(fleet: Fleet, document_id: str) -> str:
    """Wait for the document, and return its Markdown."""
    wait_until(
        lambda: documents.status(document_id).status is DocumentStatus.COMPLETED,
        DONE_S,
        "it is converted",
        last=lambda: (documents.status(document_id), fleet.describe()),
    )
    return documents.status(document_id).read_text()


def test_a_scan_is_completed_after_a_node_dies_half_way(fleet: Fleet, data_dir: Path) -> None:
    fleet.start("a", HEARTBEAT_MS="4000")  # a stalled node counts as connected for a while
    fleet.stack.start("cpu-1", "control-1", "ai-1", "beat-1")
    start_node(fleet, "n1")
    start_node(fleet, "n2")
    wait_until(lambda: fleet.nodes() == {"n1", "n2"}, DONE_S, "both nodes are connected")
    undisturbed = converted(fleet, documents.submit(scan(data_dir / "first.pdf")).id)
    assert [f"page {number}" in undisturbed for number in range(PAGES)] == [True] * PAGES
    second = documents.submit(scan(data_dir / "second.pdf"), fresh=True, use_cache=False).id
    started = lambda: documents.status(second).status is DocumentStatus.PROCESSING  # noqa: E731
    wait_until(started, DONE_S, "its pages are being converted")
    fleet.stack["n1"].pause()  # the node must have a page when it dies
    wait_until(lambda: _has_a_page(fleet, "n1"), DONE_S, "the first node has a page", last=fleet.describe)
    fleet.stack["n1"].kill()
    assert converted(fleet, second) == undisturbed
    assert {page.attempts for page in queries.pages(fleet.context, second)} == {1}, "the gateway found another node"
    fleet.wait_until_quiet()


def _has_a_page(fleet: Fleet, node_id: str) -> bool:
    jobs = fleet.ask_state(lambda store: Jobs(store).list(limit=20))
    return any(job.node_id == node_id and job.state in AT_WORK for job in jobs)
