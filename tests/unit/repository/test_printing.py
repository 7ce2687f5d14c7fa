"""Foreign text reaches a terminal through one printer, which removes control characters."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PRINTER = "pipeline/interfaces/cli/output.py"
WRITES = {
    "print",
    "input",
    "Console",
    "TextColumn",
    "echo",
    "secho",
    "confirm",
    "prompt",
    "from_markup",
    "StreamHandler",
    "print_exc",
    "print_exception",
    "print_stack",
    "showwarning",
    "stdout",
    "stderr",
    "__stdout__",
    "__stderr__",
}
MODULES = {"sys", "rich", "typer", "click", "logging", "traceback", "warnings", "Text", "bars", "console", "markup"}
"""The object of each attribute; None for builtins and imported names."""
OTHERS = {
    ("pipeline/engine/logs.py", "logging.StreamHandler"): "the log, whose lines are made printable",
    ("pipeline/engine/logs.py", "sys.stderr"): "whether it is a terminal",
    ("pipeline/interfaces/cli/connect/command.py", "typer.prompt"): "a question of ours",
    ("pipeline/interfaces/cli/main.py", "sys.stdout"): "how it encodes",
    ("pipeline/interfaces/cli/music.py", "bars.TextColumn"): "a word of ours",
    ("pipeline/interfaces/cli/nodes/node.py", "sys.stderr"): "flushed",
    ("pipeline/interfaces/cli/nodes/node.py", "sys.stdout"): "flushed",
    ("pipeline/interfaces/cli/stack.py", "typer.echo"): "help, which is ours",
    ("pipeline/standalone/serve.py", "sys.stderr"): "made printable",
}
"""Other modules that may write to a terminal, with the purpose."""


def test_nothing_else_writes_to_a_terminal() -> None:
    paths = [ROOT / "penstock_entry.py", ROOT / "celeryconfig.py"]
    paths += [path for folder in ("pipeline", "tasks") for path in (ROOT / folder).rglob("*.py")]
    writers = {(str(path.relative_to(ROOT)), name) for path in paths for name in _writes(path)}
    elsewhere = {(path, name) for path, name in writers if path != PRINTER}
    assert elsewhere == set(OTHERS)


def _writes(path: Path) -> Iterator[str]:
    """Yield the functions of `WRITES` that a module uses, as attributes of their modules or as imported names."""
    text = path.read_text(encoding="utf-8")
    if not any(name in text for name in WRITES):  # most modules need no parsing
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in WRITES and module in MODULES:
                yield f"{module}.{name}"
            case ast.Call(func=ast.Name(id=name)) if name in {"print", "input"}:
                yield name
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in MODULES:
                yield from (f"{module}.{alias.name}" for alias in names if alias.name in WRITES)
