"""The MCP server with the protocol's SDK for TypeScript, on Node.js: each tool, over HTTP and over stdio.

The SDK checks each result against the tool's listed schema.
"""

import base64
import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import COMMAND, ROOT, Server
from nodejs import ASSISTANT, node

REPORT = ROOT / "examples" / "about-penstock.pdf"
PAGES = 3
_START_S, _STOP_S = 60, 30


class Assistant:
    """A process of `assistant.js`."""

    by = ""
    """The transport: http or stdio."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.tools = {tool["name"]: tool for tool in self._read()["tools"]}

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": tool, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        message = self._read()
        assert "broken" not in message, message
        return message

    def use(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return its result."""
        result = self.call(tool, **arguments)
        assert not result.get("isError"), result
        return dict(result["structuredContent"])

    def refused(self, tool: str, **arguments: Any) -> str:
        """Call a tool that refuses; return its sentence."""
        result = self.call(tool, **arguments)
        assert result["isError"], result
        return str(result["content"][0]["text"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the assistant has ended; its output is above"
        return dict(json.loads(line))


@contextmanager
def assistant(where: dict[str, Any], folder: Path) -> Iterator[Assistant]:
    command = [node() or "node", str(ASSISTANT / "assistant.js"), json.dumps(where)]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield Assistant(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(_STOP_S) == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def files() -> Iterator[str]:
    """The address of a web server with the examples."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(REPORT.parent)))
    threading.Thread(target=web.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    web.server_close()


@pytest.fixture(scope="module")
def over_http(server: Server) -> Iterator[dict[str, str]]:
    """The address and key of an API beside the stack. This API may fetch from this machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    env = server.env | {
        "PENSTOCK_API__PORT": str(port),
        "PENSTOCK_API__FETCH": "true",
        "PENSTOCK_API__FETCH_PRIVATE": '["127.0.0.0/8"]',
    }
    api = subprocess.Popen([COMMAND, "api"], env=env, cwd=server.folder)
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the API does not answer"
                time.sleep(0.1)
        key = json.loads(server.run("keys", "create", "assistant", "--scope", "write", "--json"))["secret"]
        yield {"url": f"http://127.0.0.1:{port}/mcp", "key": key}
    finally:
        api.terminate()
        api.wait(_STOP_S)


@pytest.fixture(params=["http", "stdio"])
def writer(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Assistant]:
    """An assistant with permission to write."""
    where: dict[str, Any] = {"command": COMMAND, "args": ["mcp", "--write"], "env": server.env, "cwd": str(tmp_path)}
    if request.param == "http":
        where = request.getfixturevalue("over_http")
    with assistant(where, tmp_path) as started:
        started.by = request.param
        yield started


def test_each_tool(writer: Assistant, server: Server, files: str) -> None:
    by = writer.by
    source = {"path": str(REPORT)} if by == "stdio" else {"url": f"{files}/{REPORT.name}"}
    result = writer.call("convert_document", **source, fresh=True, wait_s=150)
    assert not result.get("isError"), result
    document = result["structuredContent"]["document"]
    assert (document["status"], document["pages"]) == ("COMPLETED", PAGES)
    assert "# About Penstock" in result["structuredContent"]["beginning"]["markdown"]
    steps = [(step["progress"], step.get("total")) for step in result["progress"]]
    # The SDK drops a report that arrives in one read with the answer, so the last one may be missing.
    assert steps[-1] in {(PAGES - 1, PAGES), (PAGES, PAGES)}
    assert steps == sorted(steps, key=lambda step: step[0])

    markdown = writer.use("get_markdown", document_id=document["id"], pages="1", limit=500)
    assert (len(markdown["markdown"]), markdown["next_offset"]) == (500, 500)
    shown = writer.call("get_page_image", document_id=document["id"], page=3)
    picture = shown["content"][0]
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")
    assert writer.use("retry", id=document["id"], page=1)["status"] != "COMPLETED"
    assert writer.use("get_status", id=document["id"], wait_s=120)["document"]["status"] == "COMPLETED"
    assert writer.use("list_failures")["failures"] == []
    assert writer.use("search_screenshots", query="invoice")["hits"] == []
    assert writer.use("timeline")["items"] == []

    server.run("kb", "create", f"notes-{by}")
    note = {"base": f"notes-{by}", "kind": "note", "text": f"The turbine of {by} is under the mat.", "wait_s": 120}
    assert writer.use("add_to_knowledge", **note)["item"]["status"] == "completed"
    hits = writer.use("search_knowledge", query="where is the turbine?", bases=[f"notes-{by}"])["hits"]
    assert hits[0]["text"] == note["text"]
    results = writer.use("search", query="turbine")["results"]
    assert {result["id"].partition(":")[0] for result in results} == {"page", "chunk"}
    for result in results:
        fetched = writer.use("fetch", id=result["id"])
        assert fetched.keys() == {"id", "title", "text", "url", "metadata"}
        assert "turbine" in fetched["text"]


def test_refusals_are_sentences(writer: Assistant) -> None:
    assert "Use search" in writer.refused("retry", id="abc")
    assert "limit" in writer.refused("get_markdown", document_id="abc", limit=10**9)
    message = writer.refused("convert_document", path="/etc/passwd")
    assert ("supported type" if writer.by == "stdio" else "does not read") in message


def test_without_the_flag_no_tool_writes(server: Server, tmp_path: Path) -> None:
    where = {"command": COMMAND, "args": ["mcp"], "env": server.env, "cwd": str(tmp_path)}
    with assistant(where, tmp_path) as reader:
        assert reader.tools.keys().isdisjoint({"convert_document", "retry", "add_to_knowledge"})
        assert all(tool["annotations"]["readOnlyHint"] for tool in reader.tools.values())
        assert "penstock mcp --write" in reader.refused("retry", id="abc")
