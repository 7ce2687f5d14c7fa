"""`penstock node` in real processes, as users start it: they need only a gateway."""

import signal
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from pipeline.nodes.protocol import Capability, NodeDrain
from pipeline.providers.lexical import LexicalEmbeddings
from tests.support.cli import Cli, environment, provider_settings
from tests.support.provider_server import Fault, ProviderServer
from tests.support.scripted_gateway import TOKEN, ScriptedGateway

EMBEDDINGS = Capability.EMBEDDINGS


@pytest.fixture
def cli(data_dir: Path, tmp_path: Path) -> Iterator[Cli]:
    new_cli = Cli(data_dir, tmp_path, environment(data_dir, PENSTOCK_LOG_LEVEL="DEBUG", PENSTOCK_NODE_TOKEN=TOKEN))
    yield new_cli
    new_cli.kill_everything()


def test_two_nodes_of_one_data_folder_run_jobs_until_a_signal_ends_them(gateway: ScriptedGateway, cli: Cli) -> None:
    first = cli.start("node", "--gateway", gateway.url, "--slots", "3", "--name", "Rack")
    link = gateway.welcome()
    assert link.registered
    assert (link.registered.slots, link.registered.name, link.token) == (3, "Rack", f"Bearer {TOKEN}")
    assert {offer.capability for offer in link.registered.offers} == {Capability.PAGE, EMBEDDINGS}
    second = cli.start("node", "--gateway", gateway.url)
    other = gateway.welcome()
    assert other.registered
    assert other.registered.node_id != link.registered.node_id
    link.assign("a", capability=EMBEDDINGS, texts=["secret words"])
    link.expect_start("a")
    result = link.result("a").result
    assert result
    assert result["vectors"] == LexicalEmbeddings().embed(["secret words"]).vectors
    for process in (first, second):
        process.process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, process.output
    assert f"Registered at {gateway.url}/ws/node (scripted) as {link.registered.node_id}: 3 slots" in first.output
    assert "Ending (SIGTERM): no job in progress." in first.output
    assert TOKEN not in first.output
    assert "secret words" not in first.output
    third = cli.start("node", "--gateway", gateway.url)
    registered = gateway.welcome().registered
    assert registered
    assert registered.node_id == link.registered.node_id
    third.interrupt()
    assert third.wait() == 0, third.output
    assert sorted(path.name for path in cli.data_dir.iterdir()) == ["node-1.id", "node-2.id"]


def test_a_second_signal_does_not_wait_for_a_job_that_hangs(gateway: ScriptedGateway, cli: Cli) -> None:
    with ProviderServer() as server:
        cli = cli.using(**provider_settings(server.base_url))
        node = cli.start("node", "--gateway", gateway.url, "--provider", "ai", "--capability", "text", "--id", "desk")
        link = gateway.welcome()
        assert link.registered
        assert (link.registered.node_id, link.registered.slots) == ("desk", 8)
        assert [(offer.capability, offer.models) for offer in link.registered.offers] == [("text", ("vision-1",))]
        server.push(Fault(kind="hang"))
        link.assign("a", prompt="secret words")
        link.expect_start("a")
        assert server.wait_for_calls(1, 60)
        node.process.send_signal(signal.SIGTERM)
        link.expect(NodeDrain)
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 130, node.output
        assert "Ending (SIGTERM): 1 job in progress." in node.output
        assert "secret" not in node.output


def test_a_refused_token_ends_the_node_with_a_message(gateway: ScriptedGateway, cli: Cli) -> None:
    gateway.refuse_with = HTTPStatus.UNAUTHORIZED
    file = cli.cwd / "token"
    file.write_text("pstn_from-the-file\n")
    cli = cli.using(PENSTOCK_NODE_TOKEN=None)
    refused = cli.run("node", "--gateway", gateway.url, "--token-file", file)
    assert (refused.code, refused.out) == (1, "")
    assert f"penstock: the gateway {gateway.url}/ws/node does not accept the token" in refused.err
    assert "the address answered HTTP 401 instead of a WebSocket" in refused.err, "as from the REST API's port"
    assert "pstn_from" not in refused.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gateway", "http://127.0.0.1"), "the address of a gateway looks like wss://host"),
        (("--gateway", "ws://127.0.0.1:1", "--id", "a b"), "a node's id has 1 to 64 characters"),
        (("--gateway", "ws://127.0.0.1:1", "--capability", "x"), "unknown capability 'x': choose from vision, "),
        (("--gateway", "ws://127.0.0.1:1", "--token", "a b"), "not a token"),
        (("--gateway", "ws://127.0.0.1:1", "--token", "a b"), "every user of this machine can read arguments"),
        (("--gateway", "ws://127.0.0.1:1", "--token", ""), "a token is needed"),
        (("--gateway", "wss://127.0.0.1:1", "--ca", "/dev/null"), "is not a PEM file"),
    ],
)
def test_wrong_usage_is_reported_first(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    result = cli.run("node", *arguments)
    assert result.code == 2
    assert says in result.err
    assert not list(cli.data_dir.iterdir())
