"""Traces of a real fleet in a real collector: tasks and calls, without texts of documents."""

from collections.abc import Iterator

import pytest

from pipeline.flows.documents.states import DocumentStatus
from tests.faults.flow import SQLITE, Flow
from tests.support.collector import Collector
from tests.support.provider_server import Fault, ProviderServer
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
SECRET = "words that the provider's error quotes"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture
def extra_env(collector: Collector) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}


@SQLITE
def test_traces_of_tasks_and_calls_have_no_prompt_or_answer(
    stack: Stack, flow: Flow, collector: Collector, provider: ProviderServer
) -> None:
    provider.push(Fault(status=400, body=SECRET))
    stack.start("cpu-1", "control-1", "ai-1")
    document = flow.submit(2)
    flow.wait_for_status(document, DocumentStatus.PARTIAL_FAILED)
    wait_until(lambda: len(collector.named("ai.call")) >= 2, 60, "both calls are in the collector")
    calls = {span["status"]: span for span in collector.named("ai.call")}
    about = {"gen_ai.provider.name": "test", "penstock.capability": "vision", "penstock.queue": "vision.test"}
    assert calls[0].items() >= (about | {"gen_ai.response.model": "test-model"}).items()
    assert calls[0]["gen_ai.usage.output_tokens"] > 0
    assert calls[2].items() >= (about | {"error.type": "permanent", "message": "", "events": 0}).items()
    # The pool of `cpu` has processes, that of `ai` threads.
    for task in ("run/documents.split", "run/documents.lane"):
        wait_until(lambda task=task: collector.named(task), 60, f"{task} is in the collector")
    assert collector.paths == {"/v1/traces"}
    exported = b"".join(collector.bodies).decode(errors="replace")
    assert SECRET not in exported
    assert not [page.content for page in flow.pages(document) if page.content and page.content in exported]
    assert "test-key" not in exported
