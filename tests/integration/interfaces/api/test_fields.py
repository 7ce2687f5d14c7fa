"""Fields that no answer may have: paths and workers of the server, secrets and their hashes, and prompts.

`tests/data/snapshots` list the fields of each route and tool; this test says which must never be among them.
"""

import re
from collections.abc import Iterator

from pipeline.interfaces.api.app import PREFIX
from pipeline.interfaces.mcp.tool import adapter
from pipeline.interfaces.mcp.tools import TOOLS
from tests.support.snapshots.addresses import operations
from tests.support.snapshots.fields import Fields

HIDDEN = re.compile(r"(\w+_)?(path|worker_id|claim|claim_id|secret|secret_hash|hash|prompt|password|dsn|dir)")
"""Names of fields with facts of the machine or secrets."""
SHOWN = {
    "GET /api/v1/about": {"data_dir"},  # for administrators
    "GET /api/v1/screenshots/nodes/{node_id}": {"prompt_hash"},  # identifies the prompt of a summary
    # The answer shows a new secret once, to its creator.
    "POST /api/v1/keys": {"secret"},
    "POST /api/v1/nodes/tokens": {"secret"},
    "POST /api/v1/webhooks/endpoints": {"secret"},
    "POST /api/v1/webhooks/endpoints/{endpoint_id}/secret": {"secret"},
    # The file's name from the caller's request.
    "POST /api/v1/knowledge-bases/{base_id}/items": {"path"},
}
"""Hidden fields that a route shows nevertheless, and why."""


def _hidden(lines: list[str]) -> set[str]:
    """Return the names of hidden fields in lines such as `200 items[].path string`."""
    names = {name for line in lines for name in re.split(r"[.\s]", line.replace("[]", ""))[:-1]}
    return {name for name in names if HIDDEN.fullmatch(name)}


def _answers() -> Iterator[tuple[str, list[str]]]:
    for operation, facts in operations().items():
        yield operation, [fact for fact in facts if re.match(r"[1-5]\d\d ", fact)]
    for tool in TOOLS:
        schema = adapter(tool.result).json_schema(mode="serialization")
        yield f"tool {tool.name}", list(Fields(schema, answers=True).lines(schema))


def test_answers_contain_no_facts_of_the_machine_and_no_secrets() -> None:
    unexpected = {
        operation: names
        for operation, lines in _answers()
        if (names := _hidden(lines)) != SHOWN.get(operation.replace(" /knowledge", f" {PREFIX}/knowledge"), set())
    }
    assert unexpected == {}


def test_a_field_that_must_stay_hidden_is_noticed_at_any_depth() -> None:
    assert _hidden(["200 items[].merged_path null | string", "200 a.worker_id string", "200 pages integer"]) == {
        "merged_path",
        "worker_id",
    }
