"""The MCP project's conformance suite: scenarios of 2026-07-28 that need no tools, resources or prompts of its own."""

import subprocess

import pytest
from conftest import Server
from nodejs import CONFORMANCE, node

SCENARIOS = (
    "caching",
    "completion-complete",
    "dns-rebinding-protection",
    "http-header-validation",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
    "prompts-list",
    "resources-list",
    "sep-2164-resource-not-found",
    "server-sse-multiple-streams",
    "tools-list",
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_passes(server: Server, scenario: str) -> None:
    command = node()
    assert command is not None
    suite = CONFORMANCE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    arguments = ["server", "--url", f"{server.url}/mcp", "--scenario", scenario, "--spec-version", "2026-07-28"]
    done = subprocess.run([command, suite, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
