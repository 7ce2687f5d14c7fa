"""Snapshots of all that programs and people build on, in `tests/data/snapshots`: one fact a line.

Each line names its subject in full, so that a diff needs no context. An input is required unless it
is `optional` or has a default; an answer has all its fields. Bounds are those of JSON schema.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from pipeline.engine.tables import Base, table_of
from pipeline.flows import flows, gate_registry
from pipeline.interfaces.mcp import server
from pipeline.interfaces.mcp.tools import TOOLS
from pipeline.settings import Settings
from tests.support import all_settings
from tests.support.snapshots import addresses, commands
from tests.support.snapshots.fields import Fields
from tests.support.snapshots.signatures import MODULES, Signatures

FOLDER = Path(__file__).resolve().parents[2] / "data" / "snapshots"


def _settings() -> Iterator[str]:
    schema = all_settings.Everything.model_json_schema()
    defaults = {
        name: field.default_factory() if field.default_factory in {list, dict} else "made at the start"
        for name, model, key in all_settings.described()
        if (field := model.model_fields[key]).default_factory is not None
    }
    _, *lines = Fields(schema).lines(schema)
    for line in lines:
        path, _, facts = line.partition(" ")
        variable = "PENSTOCK_" + path.replace(".*", "__<NAME>").replace(".", "__").upper()
        if not facts.startswith("object"):  # a section, which has no variable
            yield f"{variable} {facts.removesuffix(' optional')}" + (
                f" = {defaults[variable]}" if variable in defaults else ""
            )
    for key, live in gate_registry(_with_a_provider()).live_settings.items():
        yield f"LIVE {key} {type(live.default).__name__} = {live.default!r}: {live.help}"


def _with_a_provider() -> Settings:
    """Return settings with all possible queues, of a provider called `name`."""
    profile = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key": "k"}
    screenshots = dict.fromkeys(("vision_provider", "text_provider", "embeddings_provider"), "name")
    music = dict.fromkeys(("provider", "embeddings_provider"), "name")
    return all_settings.by_default("/nonexistent", providers={"name": profile}, screenshots=screenshots, music=music)


def _tables() -> Iterator[str]:
    flows()
    databases = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect()}
    for model in Base.registry.mappers:
        if not model.class_.__module__.startswith("pipeline."):
            continue  # a test's
        table = table_of(model.class_)
        definitions = {name: set(_definition(table, dialect)) for name, dialect in databases.items()}
        shared = set.intersection(*definitions.values())
        yield table.name
        yield from (f"{table.name} {line}" for line in shared)
        yield from (f"{table.name} {line} ({name})" for name, lines in definitions.items() for line in lines - shared)


def _definition(table: Table, dialect: Dialect) -> Iterator[str]:
    """Yield columns, keys and constraints of the table, then its indexes, as SQLAlchemy creates them."""
    for line in str(CreateTable(table).compile(dialect=dialect)).splitlines():
        if line.startswith("\t"):
            yield line.strip().rstrip(",").strip()
    yield from (str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes)


def _mcp() -> Iterator[str]:
    for tool in TOOLS:
        listed = {way: server._listed(tool, local=way == "stdio") for way in ("http", "stdio")}
        traits, result = listed["http"].annotations, listed["http"].output_schema
        assert traits
        assert result
        yield tool.name
        yield f"{tool.name} scope {'write' if tool.writes else 'read'}{' spends' if tool.spends else ''}"
        yield from (f"{tool.name} {key} = {value!r}" for key, value in traits.model_dump().items())
        inputs = {way: set(Fields(version.input_schema).lines(version.input_schema)) for way, version in listed.items()}
        shared = set.intersection(*inputs.values())
        yield from (f"{tool.name} in {line}" for line in shared)
        yield from (f"{tool.name} in {line} ({way})" for way, lines in inputs.items() for line in lines - shared)
        yield from (f"{tool.name} out {line}" for line in Fields(result, answers=True).lines(result))


SNAPSHOTS: dict[str, Callable[[], Iterator[str]]] = {
    "routes.txt": addresses.routes,
    "console.txt": addresses.console,
    "commands.txt": commands.lines,
    "settings.txt": _settings,
    "tables.txt": _tables,
    "mcp.txt": _mcp,
    "python.txt": Signatures(MODULES).lines,
}


def snapshot(name: str) -> str:
    """Return the snapshot of the present code. Help keeps its order; the lines of all others are sorted."""
    facts = SNAPSHOTS[name]()
    lines = facts if name == "commands.txt" else sorted(set(facts))
    return "\n".join([*lines, ""])
