"""A command imports only modules that it uses. The tests read its modules when it ends."""

from pathlib import Path

import pytest

from pipeline.flows import FLOWS
from tests.support.cli import Cli, new_pdf

COUNTED = """
import atexit, pathlib, sys
sys.modules["opentelemetry"] = None  # redis imports it if it is installed
atexit.register(lambda: pathlib.Path("modules").write_text("\\n".join(sys.modules)))
"""
COMMAND = f"{COUNTED}\nimport penstock_entry\npenstock_entry.main()"
HEAVY = {
    "PIL",
    "alembic",
    "fastapi",
    "httpx2",
    "lxml",
    "markdown_it",
    "markitdown",
    "mcp",
    "numpy",
    "onnxruntime",
    "openai",
    "pypdfium2",
    "rapidocr",
    "trafilatura",
    "uvicorn",
}
"""Libraries of stages, providers and servers."""


def imported(cli: Cli, program: str, *arguments: str | Path) -> set[str]:
    """Run a program; return the modules that it has at its end."""
    done = cli.real().python(program, *arguments)
    assert done.code == 0, done.err
    return set((cli.cwd / "modules").read_text().split())


def other_flows(modules: set[str]) -> set[str]:
    """Return the modules of flows other than documents, without their declarations."""
    return {f"pipeline.flows.{name}.{room}" for name in FLOWS[1:] for room in ("flow", "models", "plan")} & modules


def test_converting_a_file_beside_a_running_stack_imports_no_other_flow_and_no_library_of_works(cli: Cli) -> None:
    modules = imported(cli, COMMAND, "convert", new_pdf(cli.cwd / "report.pdf"))
    assert (cli.cwd / "report.md").exists()
    assert HEAVY & modules == set()
    assert other_flows(modules) == set()
    assert len(modules) <= 1140


def test_the_python_api_of_documents_imports_celery_with_its_first_message(cli: Cli) -> None:
    modules = imported(cli, f"{COUNTED}\nimport tasks.documents\ntasks.documents.list_documents()")
    assert (HEAVY | {"celery", "kombu"}) & modules == set()
    assert other_flows(modules) == set()
    assert len(modules) <= 830


@pytest.mark.parametrize(
    ("arguments", "without", "most"),
    [
        (["--help"], {"structlog", "sqlalchemy", "redis", "pydantic", "pipeline.settings", "pipeline.flows"}, 350),
        (["status"], HEAVY | {"celery", "kombu"}, 1000),
    ],
    ids=["help", "status"],
)
def test_a_command_imports_no_more_than_it_needs(cli: Cli, arguments: list[str], without: set[str], most: int) -> None:
    modules = imported(cli, COMMAND, *arguments)
    assert without & modules == set()
    assert len(modules) <= most
