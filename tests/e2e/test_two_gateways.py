"""The example with two gateways: `python examples/two_gateways.py`.

Rule: docs/sources/nodes.md#tests.
"""

import subprocess
import sys

from pipeline.engine.connection import connect
from tests.support import named_redis
from tests.support.cli import environment
from tests.support.leftovers import short_folder
from tests.unit.repository.test_docs import ROOT


def test_a_job_goes_from_a_session_at_one_gateway_to_a_node_at_another(redis_url: str) -> None:
    named = {"PENSTOCK_TEST_REDIS_URL": redis_url}
    if named_redis.ON_CLUSTER:
        named["PENSTOCK_TEST_REDIS_CLUSTER_URLS"] = ",".join(named_redis.CLUSTER_URLS)
    command = [sys.executable, str(ROOT / "examples" / "two_gateways.py")]
    done = subprocess.run(
        command, env=environment(short_folder()) | named, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    message = {
        name.strip(): words.strip() for name, _, words in (line.partition(": ") for line in done.stdout.splitlines())
    }
    assert message["node"] == "node-1, connected to gateway-a"
    assert message["session"] == "connected to gateway-b"
    assert message["job"].endswith("RELEASED, ok, attempt 1")
    assert message["answer"] == "of node-1, a vector of 1024 numbers"
    assert done.stdout.count("Ended.") == 1, "every process has ended"
    with connect(redis_url) as client:
        assert not [key for key in client.scan_iter() if str(key).startswith("two-gateways:")]
