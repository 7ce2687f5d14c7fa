"""Gates over a whole fleet. The provider counts the calls."""

import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from pipeline.engine.errors import UserError
from pipeline.flows.documents.states import DocumentStatus
from pipeline.providers import gates, queue_control
from pipeline.providers.spend import next_reset
from tests.faults.flow import POSTGRESQL, SQLITE, Flow, settings
from tests.support.provider_server import Fault
from tests.support.stack import FLEET, Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
QUEUE, BREAKER = "vision.test", "test:vision"
DAILY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
}
LIMITED = settings(PROVIDERS__TEST__LIMITS="8/2s", PROVIDERS__TEST__CONCURRENCY="12")


def _calls(flow: Flow) -> int:
    return len(flow.provider.records)


def _wait_until_nothing_is_in_flight(flow: Flow) -> None:
    gate = gates.gate(flow.context, QUEUE)
    wait_until(lambda: not gate.inspect().in_flight, 90, "nothing is in flight")


@POSTGRESQL
@LIMITED
def test_no_window_exceeds_its_limit_while_workers_start_and_end(stack: Stack, flow: Flow) -> None:
    # The provider's window is slightly shorter, since the test is not about scheduling on a busy machine.
    flow.provider.configure({"limit": 8, "window_s": 1.8, "latency_s": 0.1})
    stack.start(*FLEET, "ai-2")
    document_id = flow.submit(40)
    flow.wait_for_calls(8)
    stack.start("forked-1")
    flow.wait_for_calls(16)
    stack["ai-1"].kill()
    flow.wait_for_status(document_id, within_s=180)
    assert 429 not in flow.provider.counts
    flow.assert_exactly_once(document_id)


@pytest.mark.rotating
@SQLITE
@settings(PROVIDERS__TEST__LIMITS="4/h")
def test_a_closed_gate_keeps_no_slot_from_other_queues_of_its_worker(stack: Stack, flow: Flow) -> None:
    stack.start("cpu-1", "control-1", "both-1", "beat-1")
    stopped = [flow.submit(20, f"stopped-{n}.pdf") for n in range(3)]
    flow.wait_for_calls(4)
    flows = flow.submit(12, "flows.pdf", provider="other")
    flow.wait_for_status(flows)
    models = Counter(record.model for record in flow.provider.records)
    assert models == {"test-model": 4, "other-model": 12}
    assert flow.provider.max_concurrent == 2, "both slots of the worker"
    assert {flow.document(document_id).status for document_id in stopped} == {DocumentStatus.PROCESSING}


@SQLITE
@LIMITED
def test_an_operators_pause_holds_on_workers_that_start_later_and_through_an_emptied_redis(
    stack: Stack, flow: Flow
) -> None:
    stack.start(*FLEET)
    document_id = flow.submit(30)
    flow.wait_for_calls(4)
    queue_control.pause(flow.context, QUEUE, None, "maintenance")
    at_pause = _calls(flow)
    stack.start("ai-2")
    _wait_until_nothing_is_in_flight(flow)
    seen = _calls(flow)
    assert seen <= at_pause + 4, "only calls in flight"
    flow.context.redis.flushall()
    flow.cut_connections()
    gate = gates.gate(flow.context, QUEUE)
    wait_until(gate.own.ready, 90, "a worker restored the pause")
    assert gate.inspect().closed_by == "operator"
    wait_until(lambda: stack["ai-2"].says(" ready."), 90, "the later worker is ready")
    assert _calls(flow) == seen, "no call while the queue was paused"
    queue_control.resume(flow.context, QUEUE)
    flow.wait_for_status(document_id, within_s=180)
    flow.assert_exactly_once(document_id)


@pytest.mark.rotating
@POSTGRESQL
@settings(
    PROVIDERS__TEST__BREAKER_FAIL_MAX="3",
    PROVIDERS__TEST__BREAKER_COOL_DOWN_S="2",
    DOCUMENTS__BACKOFF_S="[1,1,1,1,1,1]",
)
def test_a_provider_that_is_down_gets_only_single_probes_also_without_beat(stack: Stack, flow: Flow) -> None:
    flow.provider.configure({"always": {"kind": "reply", "status": 503}, "latency_s": 0.05})
    stack.start("cpu-1", "control-1", "ai-1", "ai-2")
    document_id = flow.submit(12)
    breaker = gates.breaker(flow.context, BREAKER)
    wait_until(lambda: breaker.inspect().state == "open", 90, "the breaker opened")
    _wait_until_nothing_is_in_flight(flow)
    opened = _calls(flow)
    assert opened <= 3 + 8, "the failures that opened it, and calls in flight"
    wait_until(lambda: _calls(flow) > opened, 90, "a probe has been sent")
    wait_until(lambda: breaker.inspect().left_s > 1, 90, "the probe failed and it opened for longer")
    assert _calls(flow) == opened + 1, "one probe in the whole fleet"
    flow.provider.configure({"always": None})
    flow.wait_for_status(document_id, within_s=180)
    assert breaker.inspect().state == "closed"


@SQLITE
@settings(PROVIDERS__TEST__TIMEOUT_S="2", PROVIDERS__TEST__CONCURRENCY="8")
def test_slots_of_a_killed_worker_expire(stack: Stack, flow: Flow) -> None:
    flow.provider.configure({"latency_s": 1.5})
    queue_control.change_setting(flow.context, f"queue.{QUEUE}.concurrency", "2")
    stack.start(*FLEET)
    document_id = flow.submit(8)
    gate = gates.gate(flow.context, QUEUE)
    wait_until(lambda: flow.provider.stats(records=False)["under_way"] == 2, 90, "both slots are taken")
    stack["ai-1"].kill()
    assert gate.inspect().in_flight == 2
    flow.provider.configure({"latency_s": 0})
    stack.start("ai-2")
    flow.wait_for_status(document_id, within_s=2 + gates.SLOT_MARGIN_S + 60)
    flow.assert_exactly_once(document_id)
    assert flow.provider.max_concurrent == 2


PROBERS = """
import json, os, sys
from pipeline.engine.breaker import Breaker, BreakerPolicy
from pipeline.engine.connection import connect
from pipeline.engine.gate import Gate
import httpx2

redis_url, provider_url, processes = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(processes):
    if os.fork():
        continue
    redis = connect(redis_url)
    gate, breaker = Gate(redis, "vision.test", "test:vision", 60), Breaker(redis, "test:vision", BreakerPolicy())
    holder, asked = str(os.getpid()), 0
    redis.incr("probers")
    while int(redis.get("probers")) < processes:
        pass
    while breaker.inspect().state == "half-open":
        if gate.admit(holder).granted and gate.stamp(holder).granted:
            httpx2.post(provider_url + "/chat/completions", json=json.loads(sys.argv[4]), timeout=9)
            breaker.open(60, "the probe failed")
            gate.finish(holder)
        asked += 1
    os._exit(0 if asked else 1)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(processes)])
"""


@pytest.mark.rotating
@SQLITE
def test_one_of_twenty_processes_probes_a_half_open_breaker(flow: Flow, redis_url: str) -> None:
    gates.sync(flow.context)
    flow.provider.configure({"latency_s": 1, "api_key": ""})
    gates.breaker(flow.context, BREAKER).open(0.001, "down")
    question = json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}]})
    program = [sys.executable, "-c", PROBERS, redis_url, flow.provider.base_url, "20", question]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.strip() == str([0] * 20), ended.stderr
    assert _calls(flow) == 1


@SQLITE
@settings(PROVIDERS__TEST__CONCURRENCY="4")
def test_after_a_daily_quota_only_calls_in_flight_end(stack: Stack, flow: Flow) -> None:
    quota = json.dumps({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [DAILY]}})
    stack.start(*FLEET)
    document_id = flow.submit(20)
    flow.wait_for_calls(3)
    flow.provider.push(Fault("reply", status=429, body=quota))
    breaker = gates.breaker(flow.context, BREAKER)
    wait_until(lambda: breaker.inspect().state == "open", 90, "the breaker opened")
    _wait_until_nothing_is_in_flight(flow)
    refused_at = next(n for n, record in enumerate(flow.provider.records) if record.status == 429)
    assert _calls(flow) <= refused_at + 4, "no call beyond those in flight"
    profile = flow.context.settings.providers["test"]
    pause = next_reset(profile, datetime.now(UTC)) - datetime.now(UTC)
    assert abs(timedelta(seconds=breaker.inspect().left_s) - pause) < timedelta(minutes=1)
    stack.kill_all()
    flow.context.redis.flushall()
    stack.start(*FLEET)
    wait_until(lambda: breaker.inspect().state == "open", 90, "the breaker is open after a restart of everything")
    assert flow.document(document_id).status is DocumentStatus.PROCESSING
    # The database first: a worker that starts in between would reopen the breaker.
    gates.remember_breaker(flow.context, BREAKER, None)
    breaker.close()
    flow.wait_for_status(document_id, within_s=180)


@pytest.mark.rotating
@POSTGRESQL
@settings(PROVIDERS__TEST__FALLBACK="local")
def test_a_fallback_does_the_work_while_the_breaker_is_open(stack: Stack, flow: Flow) -> None:
    breaker = gates.breaker(flow.context, BREAKER)
    breaker.open(600, "by hand")
    gates.remember_breaker(flow.context, BREAKER, breaker.inspect())
    stack.start(*FLEET)
    document_id = flow.submit(6)
    flow.wait_for_status(document_id, within_s=180)
    assert _calls(flow) == 0
    assert {page.provider for page in flow.pages(document_id)} == {"test"}, "the pages keep their own provider"


@pytest.mark.rotating
@SQLITE
@settings(PROVIDERS__TEST__PRICES='{"*": {"output": 1000000}}', PROVIDERS__TEST__DAILY_SPEND_CAP="40")
def test_a_spend_cap_stops_the_queue_and_fails_nothing(stack: Stack, flow: Flow) -> None:
    stack.start(*FLEET)
    document_id = flow.submit(30)
    gate = gates.gate(flow.context, QUEUE)
    wait_until(lambda: gate.inspect().closed_by == "spend", 90, "the cap closed the gate")
    _wait_until_nothing_is_in_flight(flow)
    seen = _calls(flow)
    assert seen < 30
    assert "FAILED" not in flow.summary(document_id)
    queue_control.change_setting(flow.context, "provider.test.daily_spend_cap", "0")
    flow.wait_for_status(document_id, within_s=180)


def test_queues_that_do_not_exist_are_named(context: object, flow: Flow) -> None:
    with pytest.raises(UserError, match=r"vision\.test"):
        queue_control.pause(flow.context, "visoin", None)
