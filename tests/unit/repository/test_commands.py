"""The program has every command that a page, a message or a docstring names, with its options."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from celery.bin.beat import beat as celery_beat
from celery.bin.worker import worker as celery_worker
from typer.main import get_command

from pipeline.flows import gate_registry
from pipeline.flows.knowledge.live_settings import embeddings_queue
from pipeline.interfaces.cli.main import app
from pipeline.settings import Settings
from pipeline.standalone import roles

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
CODE = sorted([*ROOT.glob("pipeline/**/*.py"), *ROOT.glob("tasks/**/*.py")])
TEMPLATES = sorted(ROOT.glob("pipeline/interfaces/console/templates/**/*.html"))
COMMANDS: Any = get_command(app)
CELERY = {"worker": celery_worker, "beat": celery_beat}
"""The programs whose options these commands accept beside their own."""

_BLOCK = re.compile(r"^ *```(?:sh|bash|console|shell)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`\$?\s*penstock\s+([^`]+)`")
_BOLD = re.compile(r"\[bold\]([^\[]*penstock [^\[]*)\[/bold\]")
_HTML = re.compile(r"<code[^>]*>penstock\s+([^<]+)</code>")
_PLACEHOLDER = re.compile(r"…|\.\.\.|[A-Z][A-Z_-]*|\{.*|<.*>|\[.*")
_OPERATORS = re.compile(r"[|&;<>()]+")


def parts(line: str) -> Iterator[list[str]]:
    """Yield the words after `penstock` of each of its calls in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        if _OPERATORS.fullmatch(word):
            calls.append([])
        else:
            calls[-1].append(word)
    for call in calls:
        while call and re.fullmatch(r"\$|[A-Z_0-9]+=.*", call[0]):
            call.pop(0)
        if call and call[0] == "penstock":
            yield call[1:]


def of_page(text: str) -> Iterator[list[str]]:
    """Yield the commands in a Markdown page."""
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if "penstock" in line:
                yield from parts(line)
    for span in _SPAN.findall(_FENCED.sub("", text)):
        yield shlex.split(span)


def of_code(text: str) -> Iterator[list[str]]:
    """Yield the commands in the strings of a Python file."""
    tree = ast.parse(text)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            words = node.value
        else:
            continue
        for span in _SPAN.findall(words):
            yield shlex.split(span)
        for line in _BOLD.findall(words):
            yield from parts(line)


def named() -> Iterator[tuple[str, list[str]]]:
    """Yield (file, the words after `penstock`) of every command in docs and code."""
    for files, find in (
        (PAGES, of_page),
        (CODE, of_code),
        (TEMPLATES, lambda text: map(shlex.split, _HTML.findall(text))),
    ):
        for file in files:
            text = file.read_text(encoding="utf-8")
            if "penstock " in text:
                for words in find(text):
                    yield str(file.relative_to(ROOT)), words


def fault(words: list[str]) -> str:
    """Return the fault of a command, or an empty string."""
    command: Any = COMMANDS
    rest, path = list(words), []
    while hasattr(command, "commands") and rest:
        name = rest[0]
        if name.startswith("-") or _PLACEHOLDER.fullmatch(name):
            break
        rest.pop(0)
        several = name.split("|")
        if missing := [alternative for alternative in several if alternative not in command.commands]:
            return f"there is no command {' '.join([*path, missing[0]])!r}"
        path.append(several[0])
        _, command, _ = command.resolve_command(None, several[:1])
    return _wrong_arguments(command, " ".join(path), rest)


def _wrong_arguments(command: Any, name: str, rest: list[str]) -> str:
    context = command.context_class(command, info_name=name, **command.context_settings)
    try:
        values, surplus, _ = command.make_parser(context).parse_args(list(rest))
        if own := CELERY.get(name):
            _, surplus, _ = own.make_parser(click.Context(own)).parse_args(list(surplus))
    except Exception as error:  # typer's copy of click has its own classes
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    surplus = [word for word in surplus if word not in {"…", "..."}]
    if surplus and name != "flower" and not (hasattr(command, "commands") and _PLACEHOLDER.fullmatch(surplus[0])):
        return f"{name!r} does not take {surplus[0]!r}"
    if name == "worker" and values.get("role"):
        return _wrong_choice(values["role"], roles.ROLES)
    return ""


def _wrong_choice(value: str, choices: Any) -> str:
    known = {str(choice).lower() for choice in choices}
    wrong = [
        choice for choice in value.split("|") if choice.lower() not in known and not _PLACEHOLDER.fullmatch(choice)
    ]
    return f"{wrong[0]!r} is none of {sorted(known)}" if wrong else ""


def test_every_command_in_docs_and_messages_works() -> None:
    commands = list(named())
    assert len(commands) > 300
    wrong = [f"{file}: penstock {shlex.join(words)}: {why}" for file, words in commands if (why := fault(words))]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("worker ai", "does not take 'ai'"),
        ("worker --role cpus", "'cpus' is none of"),
        ("worker --role ai -c 64", ""),
        ("worker --queue-names cpu", "No such option"),
        ("documents retry ID --failled", "No such option"),
        ("documents remove ID", "no command 'documents remove'"),
        ("documents list NAME", "does not take 'NAME'"),
        ("nodes list|show|revoke", ""),
        ("kb …", ""),
    ],
)
def test_a_command_that_does_not_work_is_noticed(line: str, why: str) -> None:
    problem = fault(shlex.split(line))
    assert why in problem
    assert bool(problem) == bool(why)


def test_a_worker_for_all_queues_is_documented_with_all_of_them() -> None:
    providers: Any = {"openai": {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key": "k"}}
    screenshots: Any = dict.fromkeys(("vision_provider", "text_provider", "embeddings_provider"), "openai")
    music: Any = {"provider": "openai", "embeddings_provider": "openai"}
    fixed = {"control", "cpu", "io", "capture"}
    plain = fixed | set(gate_registry(Settings(providers=providers)).queues)
    whole = set(gate_registry(Settings(providers=providers, screenshots=screenshots, music=music)).queues)
    whole |= {embeddings_queue("openai"), "maintenance", *fixed}
    page = (ROOT / "docs/how-to/operations.md").read_text(encoding="utf-8")
    calls = [words for words in of_page(page) if "-Q" in words]
    assert [set(words[words.index("-Q") + 1].split(",")) for words in calls] == [plain]
    assert [queue for queue in sorted(whole) if f"`{queue.replace('openai', 'NAME')}`" not in page] == []


def test_the_programs_help_repeats_the_summary_of_each_command() -> None:
    program: Any = get_command(app)
    shown = {name: stub.help for name, stub in program.commands.items()}
    summaries = {name: COMMANDS.resolve_command(None, [name])[1].help.split("\n\n")[0] for name in shown}
    assert shown == summaries
