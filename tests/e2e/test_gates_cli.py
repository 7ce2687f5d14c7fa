"""`penstock queues`, `breakers` and `settings`, on a running stack and without one."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cli import Cli, new_pdf
from tests.support.provider_server import ProviderServer
from tests.support.waiting import wait_until

QUEUE = "vision.single"


@pytest.fixture(autouse=True)
def reset_gates(cli: Cli) -> Iterator[None]:
    """Reset the shared stack's gates after each test."""
    yield
    cli.run_all(
        [
            ["queues", "resume", QUEUE],
            ["breakers", "close", "single:vision"],
            ["settings", "unset", f"queue.{QUEUE}.limits"],
            ["settings", "unset", "provider.single.limits"],
        ]
    )


def row_of(cli: Cli, queue: str = QUEUE) -> dict[str, object]:
    return next(row for row in cli.run("queues", "--json").json() if row["queue"] == queue)


def test_a_paused_queue_keeps_its_pages_and_convert_says_why(cli: Cli, provider: ProviderServer) -> None:
    paused = cli.run("queues", "pause", QUEUE, "--reason", "maintenance")
    assert (paused.code, f"penstock queues resume {QUEUE}" in paused.err) == (0, True)
    new_pdf(cli.cwd / "report.pdf", 3)
    convert = cli.start("convert", "report.pdf", "--provider", "single")
    convert.wait_for("paused by an operator (maintenance)")
    row = row_of(cli)
    assert (row["gate"], row["reason"], row["resumes"]) == ("closed by an operator", "maintenance", "when resumed")
    assert not provider.records
    assert cli.run("queues", "resume", QUEUE).code == 0
    assert convert.wait() == 0, convert.output
    assert len(provider.records) == 3
    assert row_of(cli)["gate"] == "flowing"


def test_a_pause_with_a_duration_ends_at_its_time(cli: Cli, provider: ProviderServer) -> None:
    assert cli.run("queues", "pause", QUEUE, "--for", "3s").code == 0
    new_pdf(cli.cwd / "report.pdf")
    assert cli.run("convert", "report.pdf", "--provider", "single").code == 0
    assert len(provider.records) == 1


def test_limits_of_queue_and_provider_are_set_shown_and_unset(cli: Cli) -> None:
    own, shared = cli.run("queues", "limit", QUEUE, "5/s"), cli.run("queues", "limit", "single", "500/min, 10/s")
    assert (own.code, shared.code) == (0, 0)
    # Without the use: calls of other tests on this stack count too.
    limits: Any = row_of(cli)["limits"]
    assert [(limit["limit"], limit["of"]) for limit in limits] == [
        ("5/s", "queue"),
        ("500/min", "single"),
        ("10/s", "single"),
    ]
    repeated = cli.run("queues", "limit", QUEUE, "20/s")
    assert "All queues of single together: 500/min, 10/s" in repeated.err
    assert cli.run("settings", "get", f"queue.{QUEUE}.limits").out == "20/s\n"
    listed = cli.run("settings", "list")
    assert f"queue.{QUEUE}.limits" in listed.out
    assert cli.run("settings", "unset", f"queue.{QUEUE}.limits").code == 0
    cap = "provider.single.daily_spend_cap"
    assert cli.run("settings", "set", cap, "0.00001").err == f"{cap} = 0.00001\n"
    assert cli.run("settings", "unset", cap).code == 0
    assert [limit["limit"] for limit in row_of(cli)["limits"]] == ["500/min", "10/s"]  # type: ignore[attr-defined]


def test_drain_waits_for_calls_in_flight(cli: Cli, provider: ProviderServer) -> None:
    provider.configure({"latency_s": 5})
    new_pdf(cli.cwd / "report.pdf", 2)
    convert = cli.start("convert", "report.pdf", "--provider", "single")
    assert provider.wait_for_calls(1, 90), convert.output
    drained = cli.run("queues", "drain", QUEUE)
    assert (drained.code, "nothing in flight" in drained.err) == (0, True)
    assert (len(provider.records), provider.stats(records=False)["under_way"]) == (1, 0)
    assert cli.run("queues", "resume", QUEUE).code == 0
    assert convert.wait() == 0
    assert len(provider.records) == 2


def test_a_breaker_opened_by_hand_closes_its_queue_until_it_is_closed(cli: Cli, provider: ProviderServer) -> None:
    opened = cli.run("breakers", "open", "single:vision", "--for", "10m", "--reason", "invoice unpaid")
    assert (opened.code, opened.err.count("\n")) == (0, 1), "no log lines"
    assert opened.err.startswith("single:vision: open, a probe in")
    state = next(row for row in cli.run("breakers", "--json").json() if row["name"] == "single:vision")
    assert (state["state"], state["reason"]) == ("open", "invoice unpaid")
    new_pdf(cli.cwd / "report.pdf")
    convert = cli.start("convert", "report.pdf", "--provider", "single")
    convert.wait_for("paused by its breaker (invoice unpaid)")
    assert cli.run("breakers", "close", "single:vision").err == "single:vision: closed\n"
    assert convert.wait() == 0
    assert len(provider.records) == 1


def test_a_wrong_name_or_value_is_refused_with_advice(cli: Cli) -> None:
    refused = cli.run_all(
        [
            ["queues", "pause", "visoin"],
            ["queues", "pause", QUEUE, "--for", "soon"],
            ["queues", "limit", QUEUE, "0/s"],
            ["queues", "limit", QUEUE, "many"],
            ["breakers", "close", "nobody"],
            ["settings", "set", "colour", "red"],
            ["settings", "get", "queue_batchsize"],
            ["queues", "limit", QUEUE, "5/s", "--concurrency", "-1"],
            ["settings", "set", "queue_concurrency", "0"],
        ]
    )
    words = (
        QUEUE,
        "10m",
        "pause it",
        "10/s",
        "single:vision",
        "settings list",
        "did you mean queue_batch_size?",
        "-1",
        "from 1",
    )
    for result, word in zip(refused, words, strict=True):
        assert result.code in (1, 2), result
        assert word in result.err, result
        assert "Traceback" not in result.err


def test_pauses_set_without_a_stack_hold_in_the_next_stack(alone: Cli, provider: ProviderServer) -> None:
    assert alone.run("queues", "pause", "vision.ai").code == 0
    looked = alone.run("queues")
    assert (looked.code, "penstock up" in looked.err) == (1, True)
    up = alone.start("up")
    up.wait_for("Penstock is up")
    wait_until(lambda: row_of(alone, "vision.ai")["gate"] == "closed by an operator", 90, "the pause is in force")
    assert not provider.records
    assert "vision.ai is paused by an operator" in alone.run("status").out
    assert alone.run("breakers", "open", "ai:vision").code == 0
    assert "no longer paused by an operator, but" in alone.run("queues", "resume", "vision.ai").err
    up.interrupt()
    assert up.wait() == 0
