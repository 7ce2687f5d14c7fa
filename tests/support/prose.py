"""How plain our sentences are: idioms that hide the actor, for each 1,000 words of what people read.

    python -m tests.support.prose [--list N] [--limit RATE] PATH…     # files, and those below folders
    python -m tests.support.prose --since REVISION [--list N]         # lines that were added since that revision

A count is a hint, not a verdict: "nobody" may be the right word once. A page full of them reads as a translation.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_IDIOMS = {
    "whoever, nobody, somebody": r"\b(whoever|whomever|nobody|somebody|anybody)\b",
    "who/what as a noun": (
        r"\b(?:who|what|which) (?:is|was|has|have|had|are|were|will|may|can|comes?|came) "
        r"(?:\w+ ){0,3}(?:is|are|was|were|has|have|may|can)\b"
        r"|\bof whom\b|\bwhat (?:it|they|he|she|one|we|others) (?:\w+)\b"
    ),
    "one that, those that": (
        r"\b(?:one|ones|those|that|all) (?:that|who|which|of which) "
        r"(?:is|are|was|were|has|have|had|can|may|do|does)\b"
    ),
    "passive without an actor": (
        r"\bis (?:told|said|asked|looked|begun|meant|seen to|given up|thought|spoken|listened|let go|had|made new)\b"
        r"|\bare (?:told|said|asked|looked|begun|meant)\b"
    ),
    "is no, there is nothing": (
        r"\b(?:is|are|was|were) no\b(?! (?:longer|more|such))|\bthere is (?:nothing|nobody|none)\b|\bnot one\b"
    ),
    "meanwhile, at all, for good, by itself": (
        r"\b(?:meanwhile|for good|no more\b(?! than)|by itself alone|to its end|as it is|how it stands|what comes?"
        r"|otherwise has)\b"
    ),
}
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _IDIOMS.items()}
_ADVICE = "Name the actor, use an active verb and the nouns of docs/glossary.md, and state one fact a sentence."
_MARKUP = re.compile(r"\{[{%#].*?[}%#]\}|<[^>]*>", re.DOTALL)
_MESSAGE = re.compile(r"[a-z]+ [a-z]+ [a-z]", re.IGNORECASE)
"""Strings without three words in a row are names, keys and patterns."""
_ENDINGS = ("*.py", "*.md", "*.html")
_WORST = 20
"""Lines to show when a limit is exceeded."""

Lines = Iterable[tuple[int, str]]


def sentences(path: Path) -> Lines:
    """The lines of a page, of a template without its markup, or of a module's docstrings, comments and messages, with
    their numbers.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        return _of_code(text, with_messages="tests" not in path.parts)  # tests quote messages, and have texts as data
    if path.suffix == ".html":
        text = _MARKUP.sub(lambda markup: "\n" * markup[0].count("\n"), text)
    return enumerate(text.splitlines(), 1)


def _of_code(text: str, *, with_messages: bool) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(value)) if id(node) in docstrings or (with_messages and _MESSAGE.search(value)):
                yield from enumerate(value.splitlines(), node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def added(since: str) -> dict[Path, set[int]]:
    """The numbers of the lines that each file gained since that revision."""
    command = ["git", "diff", "-U0", since, "--", *_ENDINGS]
    diff = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines: dict[Path, set[int]] = {}
    numbers: set[int] = set()
    for line in diff.splitlines():
        if line.startswith("+++ b/"):
            numbers = lines.setdefault(Path(line[6:]), set())
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            numbers.update(range(first, first + count))
    return lines


def files_below(paths: Iterable[Path]) -> list[Path]:
    """The Python files, pages and templates among these paths and below them."""
    return [
        file
        for path in paths
        for file in ([path] if path.is_file() else sorted(of for ending in _ENDINGS for of in path.rglob(ending)))
    ]


@dataclass
class Count:
    """Words read, idioms by name, and the lines that have any, with how many."""

    words: int = 0
    idioms: Counter[str] = field(default_factory=Counter)
    lines: list[tuple[int, str]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return the idioms for each 1,000 words."""
        return 1000 * self.idioms.total() / max(1, self.words)

    def add(self, place: str, line: str) -> None:
        """Count one line."""
        self.words += len(re.findall(r"[A-Za-z']+", line))
        hits = {name: len(pattern.findall(line)) for name, pattern in PATTERNS.items()}
        self.idioms.update(hits)
        if total := sum(hits.values()):
            self.lines.append((total, f"{place}: {line.strip()[:160]}"))

    def worst(self, number: int) -> list[tuple[int, str]]:
        """Return the lines with the most idioms."""
        return sorted(self.lines, key=lambda line: -line[0])[:number]


def count(files: Iterable[Path], only: Mapping[Path, set[int]] | None = None) -> Count:
    """Count the idioms of these files. `only`: of each file, these lines."""
    counted = Count()
    for file in files:
        for number, line in sentences(file):
            if only is None or number in only.get(file, ()):
                counted.add(f"{file}:{number}", line)
    return counted


def main(arguments: Sequence[str]) -> int:
    """Print the counts. Returns 1 above the limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.prose", description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--since", metavar="REVISION", help="count only lines that were added since this revision")
    parser.add_argument("--list", type=int, default=0, metavar="N", help="show the N worst lines")
    parser.add_argument("--limit", type=float, metavar="RATE", help="fail above this many idioms for each 1,000 words")
    options = parser.parse_args(arguments)
    only = added(options.since) if options.since else None
    counted = count([*files_below(options.paths), *(file for file in only or () if file.is_file())], only)
    exceeded = options.limit is not None and counted.rate > options.limit
    for total, line in counted.worst(max(options.list, _WORST if exceeded else 0)):
        print(total, line)
    print("; ".join(f"{name} {number}" for name, number in counted.idioms.items()))
    subject = " ".join(map(str, options.paths)) or f"since {options.since}"
    print(f"{subject}: {counted.idioms.total()} idioms in {counted.words:,} words: {counted.rate:.2f} for each 1,000")
    if exceeded:
        print(f"The limit is {options.limit}. Rewrite the lines above. {_ADVICE}", file=sys.stderr)
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
