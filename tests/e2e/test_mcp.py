"""MCP for assistants: the client of the Python SDK against a running stack, over HTTP and over stdio."""

import json
import select
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from pipeline.interfaces.http.long_poll import WAITS
from tests.support.cli import PENSTOCK, Cli, new_pdf
from tests.support.redis_server import free_port
from tests.support.samples import picture_of
from tests.support.waiting import wait_until
from tests.support.web_server import WebServer


@dataclass
class Assistant:
    """A client of the protocol, with the progress that it received."""

    client: Client
    progress_seen: list[tuple[float, float | None]] = field(default_factory=list)

    async def use(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its result, which the client has checked against the tool's schema."""
        result = await self._call(tool, arguments)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        return dict(result.structured_content)

    async def refused(self, tool: str, **arguments: Any) -> str:
        result = await self._call(tool, arguments)
        assert result.is_error, result
        return str(result.content[0].text)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        async def hear(progress: float, total: float | None, message: str | None) -> None:
            self.progress_seen.append((progress, total))

        return await self.client.call_tool(tool, arguments, progress_callback=hear)


Act = Callable[[Assistant], Awaitable[None]]


@pytest.fixture(scope="module")
def api(shared_stack: Cli) -> Iterator[str]:
    """The address of an API beside the running stack. This API may fetch from this machine."""
    port = free_port()
    cli = shared_stack.using(
        PENSTOCK_API__PORT=str(port), PENSTOCK_API__FETCH="true", PENSTOCK_API__FETCH_PRIVATE='["127.0.0.0/8"]'
    )
    running = cli.start("api")
    running.wait_for(f"API: http://127.0.0.1:{port}")
    yield f"http://127.0.0.1:{port}"
    running.interrupt()
    assert running.wait() == 0, running.output


def over_http(cli: Cli, api: str, act: Act, mode: Any = "auto", scope: str = "write") -> None:
    key = json.loads(cli.run("keys", "create", f"assistant-{free_port()}", "--scope", scope, "--json").out)["secret"]

    async def talk() -> None:
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60) as http,
            Client(streamable_http_client(f"{api}/mcp", http_client=http), mode=mode) as client,
        ):
            await act(Assistant(client))

    anyio.run(talk)


def over_stdio(cli: Cli, act: Act, *options: str, mode: Any = "auto") -> None:
    parameters = StdioServerParameters(command=PENSTOCK, args=["mcp", *options], env=cli.env, cwd=cli.cwd)

    async def talk() -> None:
        async with Client(stdio_client(parameters), mode=mode) as client:
            await act(Assistant(client))

    anyio.run(talk)


async def read(assistant: Assistant, converted: dict[str, Any], pages: int) -> None:
    """Use every tool that reads, and `retry`, on a newly converted document."""
    document = converted["document"]
    assert (document["status"], document["pages"]) == ("COMPLETED", pages)
    assert "This is page 1" in converted["beginning"]["markdown"]
    assert (pages, pages) in assistant.progress_seen
    dones = [done for done, _ in assistant.progress_seen]
    assert dones == sorted(dones)
    status = await assistant.use("get_status", id=document["id"], wait_s=5)
    assert status["document"]["settled"]
    text = await assistant.use("get_markdown", document_id=document["id"], pages=str(pages))
    assert f"This is page {pages}" in text["markdown"]
    shown = await assistant.client.call_tool("get_page_image", {"document_id": document["id"], "page": 1})
    assert [content.type for content in shown.content] == ["image", "text"]
    retried = await assistant.use("retry", id=document["id"], page=1)
    assert retried["status"] != "COMPLETED"
    assert (await assistant.use("get_status", id=document["id"], wait_s=60))["document"]["status"] == "COMPLETED"
    assert "failures" in await assistant.use("list_failures")
    word = text["markdown"].split("Report ")[-1].split()[0] if "Report " in text["markdown"] else "page"
    results = (await assistant.use("search", query=word))["results"]
    fetched = await assistant.use("fetch", id=results[0]["id"])
    assert fetched["text"]
    assert (await assistant.use("search_screenshots", query="nothing of this"))["hits"] == []
    assert (await assistant.use("timeline"))["items"] == []


async def remember(assistant: Assistant, base: str) -> None:
    added = await assistant.use(
        "add_to_knowledge", base=base, kind="note", text=f"The key of {base} is under the mat.", wait_s=60
    )
    assert added["item"]["status"] == "completed"
    result = await assistant.use("search_knowledge", query=f"key of {base}", bases=[base])
    assert "under the mat" in result["hits"][0]["text"]
    assert "unknown knowledge base" in await assistant.refused("search_knowledge", query="x", bases=["nope"])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_each_tool_over_http(cli: Cli, api: str, tmp_path: Path, mode: str) -> None:
    content = new_pdf(tmp_path / "report.pdf", 3).read_bytes()
    cli.run("kb", "create", f"http-{mode}")
    with WebServer() as web:
        web.pages["/report.pdf"] = lambda request: request.answer(content, content_type="application/pdf")
        address = f"http://127.0.0.1:{web.port}/report.pdf"

        async def act(assistant: Assistant) -> None:
            converted = await assistant.use("convert_document", url=address, wait_s=120)
            await read(assistant, converted, 3)
            await remember(assistant, f"http-{mode}")
            assert "does not read" in await assistant.refused("convert_document", path=str(tmp_path / "report.pdf"))

        over_http(cli, api, act, mode)


def test_a_read_key_over_http_sees_no_tool_that_writes(cli: Cli, api: str) -> None:
    async def act(assistant: Assistant) -> None:
        names = {tool.name for tool in (await assistant.client.list_tools()).tools}
        assert names.isdisjoint({"convert_document", "retry", "add_to_knowledge"})
        assert "scope write" in await assistant.refused("convert_document", url="https://example.com/a.pdf")

    over_http(cli, api, act, scope="read")


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.rotating)])
def test_each_tool_over_stdio(cli: Cli, tmp_path: Path, mode: str) -> None:
    report = new_pdf(tmp_path / "report.pdf", 2)
    cli.run("kb", "create", f"stdio-{mode}")

    async def act(assistant: Assistant) -> None:
        converted = await assistant.use("convert_document", path=str(report), wait_s=120)
        await read(assistant, converted, 2)
        await remember(assistant, f"stdio-{mode}")
        for path, part in {
            "/etc/passwd": "supported type",
            "report.pdf": "absolute path",
            "/dev/zero": "ordinary file",
            str(tmp_path / "none.pdf"): "does not exist",
            str(tmp_path): "",
        }.items():
            assert part in await assistant.refused("convert_document", path=path)
        assert "PENSTOCK_API__FETCH" in await assistant.refused("convert_document", url="https://example.com/a.pdf")

    over_stdio(cli, act, "--write", mode=mode)
    assert not list((cli.data_dir / "uploads").glob("incoming-*"))


def test_without_the_flag_no_tool_over_stdio_writes(cli: Cli, tmp_path: Path) -> None:
    report = new_pdf(tmp_path / "report.pdf")

    async def act(assistant: Assistant) -> None:
        names = {tool.name for tool in (await assistant.client.list_tools()).tools}
        assert names.isdisjoint({"convert_document", "retry", "add_to_knowledge"})
        assert "penstock mcp --write" in await assistant.refused("convert_document", path=str(report))

    over_stdio(cli, act)


def test_standard_output_has_only_the_protocol(cli: Cli, tmp_path: Path) -> None:
    """Reads files that make libraries print, and sends malformed lines."""
    photo = tmp_path / "photo.png"
    picture_of(["A line"]).save(photo)
    calls: list[dict[str, Any]] = [
        {
            "method": "initialize",
            "id": 1,
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {
            "method": "tools/call",
            "id": 2,
            "params": {"name": "convert_document", "arguments": {"path": str(photo), "wait_s": 60}},
        },
    ]
    with subprocess.Popen(
        [PENSTOCK, "mcp", "--write"],
        env=cli.env | {"PENSTOCK_LOG_LEVEL": "DEBUG"},
        cwd=cli.cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("this is no message\n")
        for call in calls:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **call}) + "\n")
        process.stdin.flush()
        written: list[dict[str, Any]] = []
        while not any(line.get("id") == 2 for line in written):
            written.append(json.loads(process.stdout.readline()))
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(30) == 0
        assert "mcp.call" in process.stderr.read()
    assert all(line["jsonrpc"] == "2.0" for line in written)


@pytest.mark.parametrize("version", [pytest.param("2025-11-25", marks=pytest.mark.rotating), "2026-07-28"])
def test_a_closed_client_frees_its_wait_and_an_open_one_is_answered_at_the_servers_end(
    alone: Cli, tmp_path: Path, version: str
) -> None:
    port = free_port()
    running = alone.using(PENSTOCK_API__PORT=str(port)).start("api")
    running.wait_for(f"API: http://127.0.0.1:{port}")
    sender = HTTPConnection("127.0.0.1", port, timeout=60)
    sender.request(
        "POST", "/api/v1/documents", new_pdf(tmp_path / "a.pdf").read_bytes(), {"content-type": "application/pdf"}
    )
    document = json.load(sender.getresponse())["id"]
    sender.close()

    @contextmanager
    def waiting() -> Iterator[HTTPResponse]:
        """Wait for a document without workers; yield the answer after its first notification."""
        modern = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
        params = {
            "name": "get_status",
            "arguments": {"id": document, "wait_s": 200},
            "_meta": {"progressToken": 1, **modern},
        }
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": version,
            "mcp-method": "tools/call",
            "mcp-name": "get_status",
        }
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("POST", "/mcp", body, headers)
            with connection.getresponse() as answer:
                assert b"message" in answer.readline()
                assert b"notifications/progress" in answer.readline()
                assert answer.readline().strip() == b""
                yield answer

    for _ in range(WAITS.each + 10):
        with waiting():
            pass  # the client hangs up at once
    with waiting() as answer:
        assert not select.select([answer.fileno()], [], [], 1)[0], "the tool waits"
        running.interrupt()
        assert b'"result"' in answer.read()
    assert running.wait(60) == 0
    assert "Traceback" not in running.output


@pytest.mark.parametrize("goes", ["interrupts", "hangs up"])
def test_a_stdio_server_ends_quietly_with_its_client(cli: Cli, goes: str) -> None:
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}) + "\n"
    with subprocess.Popen(
        [PENSTOCK, "mcp"],
        env=cli.env,
        cwd=cli.cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(message)
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        if goes == "interrupts":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
            process.stdin.write(message)
            process.stdin.close()
        assert process.wait(30) == (130 if goes == "interrupts" else 0)
        assert "Traceback" not in process.stderr.read()


def test_without_a_stack_tools_name_the_start_command_and_work_after_it(alone: Cli, tmp_path: Path) -> None:
    report = new_pdf(tmp_path / "report.pdf")

    async def act(assistant: Assistant) -> None:
        waiting = await assistant.use("convert_document", path=str(report), wait_s=1)
        assert "penstock up" in waiting["next"]
        up = alone.real().start("up")
        try:
            await anyio.to_thread.run_sync(up.wait_for, "Penstock is up")
            status = await assistant.use("get_status", id=waiting["document"]["id"], wait_s=120)
            assert status["document"]["status"] == "COMPLETED"
        finally:
            up.interrupt()
            await anyio.to_thread.run_sync(up.wait)

    over_stdio(alone, act, "--write")
    wait_until(lambda: not alone.processes(), 60, "everything has ended")
