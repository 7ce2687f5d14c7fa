"""`penstock gateway` as a process: it serves, admits clients with a token, and ends on a signal."""

import re
import shutil
from pathlib import Path

from tests.support.cli import Cli, environment
from tests.support.gateway import RawNode, RawSession
from tests.support.leftovers import short_folder
from tests.support.waiting import wait_until


def test_a_gateway_serves_until_a_signal_ends_it(tmp_path: Path, redis_url: str) -> None:
    folder = short_folder()
    cli = Cli(folder, tmp_path, environment(folder, PENSTOCK_REDIS_URL=redis_url))
    try:
        gateway = cli.start("gateway", "--port", "0")
        gateway.wait_for("Ctrl-C ends it")
        address = re.search(r"ws://127.0.0.1:\d+", gateway.output)
        assert address, gateway.output
        for_node = cli.run("nodes", "tokens", "create", "desk").out.strip()
        for_session = cli.run("nodes", "tokens", "create", "pipeline", "--kind", "session").out.strip()
        with RawNode(address[0], for_node, "desk-1") as node, RawSession(address[0], for_session) as session:
            session.ask()
            node.answer_next("done")
            assert session.result()["result"] == {"text": "done"}
            listed = wait_until(lambda: cli.run("nodes", "list", "--json").json(), 30, "the node is listed")
            assert [connected["node_id"] for connected in listed or ()] == ["desk-1"]
            assert cli.run("nodes", "tokens", "revoke", "desk").code == 0
            assert node.until("nothing").code == 4401
        assert for_node not in gateway.output
        gateway.interrupt()
        assert gateway.wait() == 0, gateway.output
    finally:
        cli.kill_everything()
        shutil.rmtree(folder, ignore_errors=True)


def test_of_two_gateways_with_one_name_the_older_ends_with_the_reason(tmp_path: Path, redis_url: str) -> None:
    folder = short_folder()
    own = {"PENSTOCK_GATEWAY__INSTANCE_ID": "one", "PENSTOCK_GATEWAY__OWNER_TTL_SECONDS": "1.5"}
    cli = Cli(folder, tmp_path, environment(folder, PENSTOCK_REDIS_URL=redis_url, **own))
    try:
        older = cli.start("gateway", "--port", "0")
        older.wait_for("gateway.started")
        newer = cli.start("gateway", "--port", "0")
        newer.wait_for("gateway.started")
        assert older.wait() == 1, older.output
        assert "another gateway named 'one' has started" in older.output
        newer.interrupt()
        assert newer.wait() == 0, newer.output
    finally:
        cli.kill_everything()
        shutil.rmtree(folder, ignore_errors=True)
