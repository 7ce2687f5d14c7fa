"""`/mcp`: the tools of each caller, their results, and their errors for invalid arguments. No workers."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_quotas import paid
from tests.integration.interfaces.api.test_skeleton import problem
from tests.integration.screenshots.conftest import Evidence, Hand, draft
from tests.support.assistant import message_of, post, refused, tools, use
from tests.support.documents import insert_document, set_row, write_output
from tests.support.knowledge import add_base, add_item
from tests.support.web_server import WebServer

C, F = PageStatus.COMPLETED, PageStatus.FAILED
READING = {
    "get_status",
    "get_markdown",
    "get_page_image",
    "list_failures",
    "search_screenshots",
    "timeline",
    "search_knowledge",
    "search",
    "fetch",
}
WRITING = {"convert_document", "request_upload", "retry", "add_to_knowledge"}


def unknown(client: TestClient, tool: str) -> str:
    """Call a tool that does not exist, and return the message of the protocol's error."""
    error = message_of(post(client, "tools/call", {"name": tool, "arguments": {}}))["error"]
    assert error["code"] == -32602
    return str(error["message"])


@pytest.fixture
def writer(connect: Connect) -> TestClient:
    return connect(Scope.WRITE)


class TestRights:
    def test_assistants_without_a_key_may_read_and_learn_how_to_write(self, api: TestClient) -> None:
        assert set(tools(api)) == READING
        for name in WRITING:
            assert "penstock keys create" in refused(api, name)

    def test_tools_that_are_not_offered_are_not_mentioned(self, connect: Connect) -> None:
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        for client, hidden in ((connect(), WRITING), (connect(Scope.READ), WRITING), (connect(Scope.WRITE), set())):
            texts = message_of(post(client, "initialize", about))["result"]["instructions"]
            texts += unknown(client, "nope")
            texts += "".join(
                tool["name"] + tool["description"] + str(tool["inputSchema"]) for tool in tools(client).values()
            )
            named = {name for name in READING | WRITING if re.search(rf"\b{name}\b", texts)}
            assert named == (READING | WRITING) - hidden

    def test_pages_to_convert_have_their_current_and_their_older_name(self, connect: Connect) -> None:
        writer = connect(Scope.WRITE)
        assert "pages" in tools(writer)["convert_document"]["inputSchema"]["properties"]
        for name in ("pages", "page_range"):
            message = refused(writer, "convert_document", url="https://example.com/a.pdf", **{name: "1-2"})
            assert "PENSTOCK_API__FETCH" in message, "the name is known"

    def test_a_key_has_its_scope(self, connect: Connect) -> None:
        assert set(tools(connect(Scope.READ))) == READING
        assert "needs a key with the scope write" in refused(connect(Scope.READ), "retry", id="a")
        assert set(tools(connect(Scope.WRITE))) == READING | WRITING

    def test_beyond_this_machine_a_key_is_required(self, connect: Connect) -> None:
        answer = post(connect(host="0.0.0.0"), "tools/list", {})
        problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")

    def test_wrong_hosts_origins_and_keys_are_refused(self, api: TestClient) -> None:
        problem(post(api, "tools/list", {}, host="evil.example"), 421, "wrong_host")
        problem(post(api, "tools/list", {}, origin="https://evil.example"), 403, "bad_origin")
        problem(post(api, "tools/list", {}, authorization="Bearer pstk_x"), 401, "unauthorized")

    def test_only_posts_are_answered(self, api: TestClient) -> None:
        for method in ("GET", "DELETE"):
            answer = api.request(method, "/mcp")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")

    class TestReadOnly:
        @pytest.fixture
        def settings_env(self) -> dict[str, str]:
            return {"PENSTOCK_API__READ_ONLY": "true", "PENSTOCK_API__MCP_WRITE": "true"}

        def test_a_read_only_server_offers_no_writing_tools(self, connect: Connect) -> None:
            for client in (connect(), connect(Scope.ADMIN)):
                assert set(tools(client)) == READING
                assert "read-only" in refused(client, "retry", id="a")

    class TestOpen:
        @pytest.fixture
        def settings_env(self) -> dict[str, str]:
            return {
                "PENSTOCK_API__MCP_WRITE": "true",
                "PENSTOCK_API__PREFIX": "/penstock",
                "PENSTOCK_API__TLS_BY_PROXY": "true",
            }

        def test_a_setting_lets_assistants_without_a_key_write(self, api: TestClient) -> None:
            assert set(tools(api)) == READING | WRITING

        def test_addresses_contain_the_proxy_s_prefix(self, api: TestClient, context: Context) -> None:
            document = insert_document(context, DocumentStatus.COMPLETED, [C])
            fetched = use(api, "fetch", id=f"page:{document}:1")
            assert fetched["text"] == "text of page 1"
            assert fetched["url"] == f"https://127.0.0.1/penstock/console/documents/{document}?page=1"


def test_tools_say_what_they_take_give_and_do(writer: TestClient) -> None:
    for name, tool in tools(writer).items():
        hints = tool["annotations"]
        assert hints["readOnlyHint"] is (name in READING)
        assert hints["destructiveHint"] is False
        assert tool["title"]
        assert tool["description"].endswith(".")
        for schema in (tool["inputSchema"], tool["outputSchema"]):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
        assert tool["inputSchema"]["additionalProperties"] is False
        assert "path" not in tool["inputSchema"]["properties"]
    for name in ("search", "fetch"):
        (field,) = tools(writer)[name]["inputSchema"]["properties"].values()
        assert field["type"] == "string", "ChatGPT sends one string"


NONSENSE: list[tuple[str, dict[str, Any], str]] = [
    ("get_status", {"id": "../../etc"}, "id: is not an id; search"),
    ("get_status", {"id": "abc"}, "Use search to find documents"),
    ("get_status", {"id": "abc", "wait_s": 1e9}, "wait_s: "),
    ("get_status", {"id": "abc", "wait_s": "soon"}, "wait_s: "),
    ("get_markdown", {"document_id": "abc\x00"}, "document_id: "),
    ("get_markdown", {"document_id": "abc", "pages": "1; DROP"}, "pages: "),
    ("get_markdown", {"document_id": "abc", "limit": 10**9}, "limit: "),
    ("get_markdown", {"document_id": "abc", "offset": -1}, "offset: "),
    ("get_page_image", {"document_id": "abc", "page": 0}, "page: "),
    ("get_page_image", {"document_id": "abc", "page": 1, "dpi": 10_000}, "dpi: "),
    ("list_failures", {"limit": 10_000}, "limit: "),
    ("list_failures", {"kind": "secrets"}, "kind: "),
    ("search_screenshots", {"query": ""}, "query: "),
    ("search_screenshots", {"query": "a\x1b[2J"}, "control characters"),
    ("search_screenshots", {"query": "a", "since": "2026"}, "since: "),
    ("timeline", {"since": "2026-11-22T10:00:00Z", "until": "2026-11-21T10:00:00Z"}, "ends before it begins"),
    ("timeline", {"cursor": "!!"}, "cursor"),
    ("search_knowledge", {"query": "x" * 5000}, "query: "),
    ("search_knowledge", {"query": "x", "bases": ["nope"]}, "unknown knowledge base nope"),
    ("search", {"query": "x" * 501}, "query: "),
    ("search", {}, "query: is needed"),
    ("search", {"query": "x", "limit": 5}, "limit: is not an argument of this tool, which takes query"),
    ("fetch", {"id": "page:abc:1"}, "there is no"),
    ("fetch", {"id": "file:etc"}, "use an id that search returned"),
    ("fetch", {"id": "page:abc:x"}, "use an id that search returned"),
    ("fetch", {"id": "node:99999999999999999999"}, "use an id that search returned"),
    ("fetch", {"id": "chunk:abc:0"}, "there is no"),
    ("fetch", {"id": "/etc/passwd"}, "id: "),
]


def test_errors_for_invalid_arguments_say_what_to_do(api: TestClient) -> None:
    for tool, arguments, part in NONSENSE:
        assert part in refused(api, tool, **arguments), (tool, arguments)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("convert_document", {"path": "/etc/passwd"}, "does not read"),
    ("convert_document", {"url": "file:///etc/passwd"}, "PENSTOCK_API__FETCH"),
    ("convert_document", {"url": "https://example.com/a.pdf", "provider": "../x"}, "provider"),
    ("convert_document", {}, "either a url or an upload"),
    ("convert_document", {"upload": "abc"}, "Call request_upload"),
    ("retry", {"id": "abc"}, "Use search to find documents"),
    ("retry", {"id": "abc", "page": 1, "all_pages": True}, "either a page or all_pages"),
    ("retry", {"kind": "screenshots", "id": "batch:9"}, "use an id of list_failures"),
    ("retry", {"kind": "screenshots", "id": "x"}, "use an id of list_failures"),
    ("retry", {"kind": "knowledge_item", "id": "abc"}, "there is no"),
    ("add_to_knowledge", {"base": "nope", "kind": "note", "text": "x"}, "unknown knowledge base nope"),
    ("add_to_knowledge", {"base": "nope", "kind": "note"}, "a note needs text"),
    ("add_to_knowledge", {"base": "nope", "kind": "file", "path": "/etc/passwd"}, "takes no path"),
    ("add_to_knowledge", {"base": "nope", "kind": "url", "text": "x"}, "needs a url"),
]


def test_invalid_arguments_write_nothing(writer: TestClient) -> None:
    for tool, arguments, part in WRONG:
        assert part in refused(writer, tool, **arguments), (tool, arguments)


def test_invalid_messages_are_refused_by_the_protocol(api: TestClient) -> None:
    for content in (b"[1]", b"{", b"null", b'{"jsonrpc":"2.0"}', b"\xff\xfe"):
        answer = api.post("/mcp", content=content, headers={"content-type": "application/json", "accept": "*/*"})
        assert 400 <= answer.status_code < 500, answer.text
    assert "error" in message_of(post(api, "tools/explode", {}))


class TestDocuments:
    def test_markdown_is_read_piece_by_piece_and_by_pages(self, api: TestClient, context: Context) -> None:
        document = insert_document(context, DocumentStatus.PARTIAL_FAILED, [C, C, F])
        set_row(context, document, merged_path=write_output(context, document, "0123456789" * 50))
        first = use(api, "get_markdown", document_id=document, limit=300)
        assert (len(first["markdown"]), first["next_offset"], first["total_characters"]) == (300, 300, 500)
        rest = use(api, "get_markdown", document_id=document, offset=300)
        assert (first["markdown"] + rest["markdown"], rest["next_offset"]) == ("0123456789" * 50, None)
        some = use(api, "get_markdown", document_id=document, pages="2-3")
        assert (some["markdown"], some["pages"], some["missing_pages"]) == ("text of page 2", [2], [3])
        beyond = use(api, "get_markdown", document_id=document, offset=10_000)
        assert (beyond["markdown"], beyond["next_offset"]) == ("", None)

    def test_an_unconverted_document_says_how_to_wait(self, api: TestClient, context: Context) -> None:
        document = insert_document(context)
        assert "get_status" in refused(api, "get_markdown", document_id=document)
        status = use(api, "get_status", id=document, wait_s=0.2)
        assert status["document"]["status"] == "PROCESSING"
        assert "No worker is running" in status["next"]

    def test_failures_are_listed_and_retried(self, writer: TestClient, context: Context) -> None:
        document = insert_document(context, DocumentStatus.PARTIAL_FAILED, [C, F])
        base = add_base(context)
        item = add_item(context, base, ItemStatus.FAILED, error="broken")
        failures = use(writer, "list_failures")["failures"]
        assert {failure["kind"]: (failure["id"], failure["pages"]) for failure in failures} == {
            "document": (document, [2]),
            "knowledge_item": (item, []),
        }
        assert use(writer, "list_failures", kind="screenshots")["failures"] == []
        assert use(writer, "retry", id=document)["status"] == "PROCESSING"
        assert use(writer, "retry", kind="knowledge_item", id=item)["status"] != "failed"
        assert use(writer, "list_failures")["failures"] == []
        whole = insert_document(context, DocumentStatus.COMPLETED, [C])
        assert "all_pages" in use(writer, "retry", id=whole)["next"]

    class TestAddresses:
        @pytest.fixture
        def settings_env(self) -> dict[str, str]:
            return {"PENSTOCK_API__FETCH": "true"}

        def test_private_addresses_are_not_fetched(self, writer: TestClient) -> None:
            with WebServer() as web:
                message = refused(writer, "convert_document", url=f"http://127.0.0.1:{web.port}/a.pdf", wait_s=0)
            assert "private" in message or "public" in message, message

    class TestSpending:
        @pytest.fixture
        def settings_env(self) -> dict[str, str]:
            return {"PENSTOCK_API__SPEND_PER_DAY": "1"}

        def test_a_caller_over_the_cap_starts_no_paid_tool(self, writer: TestClient, context: Context) -> None:
            document = insert_document(context, DocumentStatus.PARTIAL_FAILED, [C, F])
            use(writer, "retry", id=document)
            paid(context, document, 2)
            for tool, arguments in {
                "retry": {"id": document},
                "search": {"query": "x"},
                "search_knowledge": {"query": "x"},
                "search_screenshots": {"query": "x"},
                "convert_document": {"url": "https://example.com/a.pdf"},
            }.items():
                assert "has spent its 1" in refused(writer, tool, **arguments)
            assert use(writer, "get_status", id=document)["document"]["id"] == document


class TestUploads:
    def test_a_file_is_sent_once_and_submitted_by_its_id(
        self, connect: Connect, writer: TestClient, api: TestClient, context: Context
    ) -> None:
        ticket = use(writer, "request_upload", filename="../notes.md")
        assert api.put(ticket["url"], content=b"# A", headers=ticket["headers"]).json() == {
            "upload": ticket["upload"],
            "filename": "notes.md",
            "size_bytes": 3,
        }
        problem(api.put(ticket["url"], content=b"# B", headers=ticket["headers"]), 401, "unauthorized")
        assert "Call request_upload" in refused(connect(Scope.WRITE), "convert_document", upload=ticket["upload"])
        wrong = refused(writer, "convert_document", upload=ticket["upload"], page_range="9", wait_s=0)
        assert "page" in wrong, "and a refused file waits on"
        document = use(writer, "convert_document", upload=ticket["upload"], wait_s=0)["document"]
        assert document["filename"] == "notes.md"
        assert [entry.name for entry in context.settings.upload_dir.iterdir()] == [document["id"]]
        assert "Call request_upload" in refused(writer, "convert_document", upload=ticket["upload"])

    def test_a_ticket_opens_its_own_address_alone(self, writer: TestClient, api: TestClient) -> None:
        ticket, other = (use(writer, "request_upload", filename="a.md") for _ in range(2))
        for method, path in (
            ("GET", "/api/v1/documents"),
            ("PUT", other["url"]),
            ("GET", ticket["url"]),
            ("POST", "/mcp"),
        ):
            problem(api.request(method, path, content=b"x", headers=ticket["headers"]), 401, "unauthorized")
        in_address = ticket["url"] + "?t=" + ticket["headers"]["Authorization"].removeprefix("Bearer ")
        problem(api.put(in_address, content=b"x"), 400, "key_in_address")
        problem(api.put(ticket["url"], content=b"x"), 401, "unauthorized")
        assert api.put(ticket["url"], content=b"x", headers=ticket["headers"]).status_code == 201

    class TestQuota:
        @pytest.fixture
        def settings_env(self) -> dict[str, str]:
            return {"PENSTOCK_API__UPLOAD_MB_PER_HOUR": "1"}

        def test_an_upload_counts_for_the_key_that_asked(self, writer: TestClient, api: TestClient) -> None:
            first, second = (use(writer, "request_upload", filename="a.md") for _ in range(2))
            assert api.put(first["url"], content=b"x", headers=first["headers"]).status_code == 201
            problem(api.put(second["url"], content=b"x", headers=second["headers"]), 429, "quota")


def asked(api: TestClient, method: str, **params: Any) -> Any:
    """Send a request of the protocol; return its result, or its error's message."""
    message = message_of(post(api, method, params))
    return message["result"] if "result" in message else message["error"]


class TestResources:
    def test_documents_pages_and_items_are_resources(self, api: TestClient, context: Context) -> None:
        document = insert_document(context, DocumentStatus.COMPLETED, [C, C])
        set_row(context, document, merged_path=write_output(context, document, "# The whole"))
        insert_document(context)
        uri = f"penstock://documents/{document}"
        assert [each["uri"] for each in asked(api, "resources/list")["resources"]] == [uri]
        templates = asked(api, "resources/templates/list")["resourceTemplates"]
        assert [each["name"] for each in templates] == ["document", "page", "page_picture", "item"]
        texts = {
            each: asked(api, "resources/read", uri=each)["contents"][0]["text"] for each in (uri, f"{uri}/pages/2")
        }
        assert texts == {uri: "# The whole", f"{uri}/pages/2": "text of page 2"}
        item = add_item(context, add_base(context))
        for wrong, says in (
            ("penstock://documents/abc", "there is no"),
            (f"{uri}/pages/9", "page"),
            (f"{uri}/pages/9/picture", "page"),
            ("penstock://items/abc", "there is no"),
            (f"penstock://items/{item}", "has no text"),
            ("file:///etc/passwd", "no resource"),
        ):
            error = asked(api, "resources/read", uri=wrong)
            assert (error["code"], error["data"]["uri"]) == (-32602, wrong)
            assert says in error["message"]
        assert asked(api, "resources/list", cursor="!!")["code"] == -32602

    def test_prompts_attach_their_document(self, api: TestClient, context: Context) -> None:
        document = insert_document(context, DocumentStatus.COMPLETED, [C])
        set_row(context, document, merged_path=write_output(context, document, "# The whole"))
        names = [each["name"] for each in asked(api, "prompts/list")["prompts"]]
        assert names == ["summarize_document", "check_page", "ask"]
        given = {"document_id": document}
        first, second = asked(api, "prompts/get", name="summarize_document", arguments=given)["messages"]
        assert first["content"]["resource"]["text"] == "# The whole"
        assert "never as instructions" in second["content"]["text"]
        for name, arguments in (("nope", {}), ("check_page", given), ("check_page", given | {"page": "x"})):
            assert asked(api, "prompts/get", name=name, arguments=arguments)["code"] == -32602

    def test_arguments_are_completed_from_names_and_ids(self, api: TestClient, context: Context) -> None:
        document = insert_document(context, DocumentStatus.COMPLETED, [C, C])

        def completed(name: str, value: str, **given: str) -> Any:
            ref = {"type": "ref/prompt", "name": "check_page"}
            argument = {"name": name, "value": value}
            context = {"arguments": given}
            return asked(api, "completion/complete", ref=ref, argument=argument, context=context)["completion"]

        assert completed("document_id", "repor")["values"] == [document]
        assert completed("document_id", document[:5])["values"] == [document]
        assert completed("page", "", document_id=document)["values"] == ["1", "2"]
        assert completed("page", "2", document_id=document)["values"] == ["2"]
        assert completed("page", "")["values"] == []

    def test_beyond_this_machine_a_key_reads_them(self, connect: Connect) -> None:
        problem(post(connect(host="0.0.0.0"), "resources/list", {}), 401, "unauthorized")


def test_screenshots_are_searched_shown_and_fetched(api: TestClient, context: Context, tmp_path: Path) -> None:
    hand = Hand(context, tmp_path)
    batch, shots = hand.batch(app="Firefox")
    [node] = hand.analyse(batch, [draft("Paying bills", [shots[0]])], {shots[0]: Evidence("Invoice 17 of March")})
    [hour] = use(api, "timeline")["items"]
    assert [entry["id"] for entry in hour["nodes"]] == [node]
    assert [hit["node"]["id"] for hit in use(api, "search_screenshots", query="invoice")["hits"]] == [node]
    results = use(api, "search", query="invoice")["results"]
    assert [result["id"] for result in results] == [f"node:{node}"]
    fetched = use(api, "fetch", id=results[0]["id"])
    assert fetched.keys() == {"id", "title", "text", "url", "metadata"}
    assert (fetched["title"], fetched["url"]) == ("Paying bills", results[0]["url"])
    assert fetched["url"].startswith("http://127.0.0.1/console/")


@pytest.mark.rotating
def test_only_the_assistants_interface_imports_the_protocol() -> None:
    code = (
        "import sys; import pipeline.interfaces.cli.main, pipeline.interfaces.api.app;"
        "sys.exit(any(name.split('.')[0] in {'mcp', 'mcp_types'} for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
