"""An assistant that speaks MCP to an API in this process: one POST for each message, as in the protocol's older half,
so that tests can send any message."""

import json
from typing import Any

from starlette.testclient import TestClient

HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


def post(api: TestClient, method: str, params: dict[str, Any], **headers: str) -> Any:
    """Send one message, and return the HTTP answer."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return api.post("/mcp", json=message, headers=HEADERS | headers)


def message_of(answer: Any) -> Any:
    """Return the message in an answer: the last one of its stream."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return json.loads(lines[-1] if lines else answer.text)


def tools(api: TestClient) -> dict[str, Any]:
    """Return the listed tools by name."""
    return {tool["name"]: tool for tool in message_of(post(api, "tools/list", {}))["result"]["tools"]}


def use(api: TestClient, tool: str, **arguments: Any) -> Any:
    """Call a tool, and return its structured result. Checks that its text holds the same."""
    result = message_of(post(api, "tools/call", {"name": tool, "arguments": arguments}))["result"]
    assert not result.get("isError"), result
    assert json.loads(result["content"][-1]["text"]) == result["structuredContent"]
    return result["structuredContent"]


def refused(api: TestClient, tool: str, **arguments: Any) -> str:
    """Call a tool, and return the sentence with which it refuses."""
    result = message_of(post(api, "tools/call", {"name": tool, "arguments": arguments}))["result"]
    assert result.get("isError"), result
    assert "structuredContent" not in result
    text: str = result["content"][0]["text"]
    assert text.endswith("."), text
    assert "Traceback" not in text
    return text
