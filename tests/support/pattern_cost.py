"""The cost of a regular expression: the number of backtracking steps, which needs no clock.

`re` does not report its steps. This module runs the tree that `re` parses a pattern into, one step for each node
that it tries, without the shortcuts of `re`, which save only a constant factor.
"""

import itertools
import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

Node = tuple[Any, Any]
Text = str | bytes
_FEW = 6
"""Repeats of more than this are a constant factor; cut to this many, the constant is small."""
_ONE = {op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN}
_REPEATS = {op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT}
_MANY_STEPS = 30_000


class TooManyError(Exception):
    """More steps than can be linear."""


class Cost:
    """Counts the steps of one pattern."""

    def __init__(self, pattern: "re.Pattern[Any]") -> None:
        self.pattern = pattern
        self._tree = list(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))
        self._flags = pattern.flags & (re.IGNORECASE | re.DOTALL | re.MULTILINE | re.ASCII)
        self._steps = 0
        self._groups: dict[int, str] = {}

    def of(self, method: str, text: Text) -> int:
        """Return the steps that `pattern.method(text)` takes. `search` stands for all methods that look everywhere."""
        subject = text.decode("latin-1") if isinstance(text, bytes) else text
        self._steps = 0
        if method in {"match", "fullmatch"}:
            ends = self._run(self._tree, 0, subject, 0)
            next((end for end in ends if method == "match" or end == len(subject)), None)
            return self._steps
        start = 0
        while start <= len(subject):
            end = next(self._run(self._tree, 0, subject, start), None)
            start = end if end is not None and end > start else start + 1
        return self._steps

    def _run(self, nodes: Sequence[Node], index: int, text: str, at: int) -> Iterator[int]:
        """Yield each place where the nodes from `index` on can end, the preferred one first."""
        if index == len(nodes):
            yield at
            return
        self._steps += 1
        if self._steps > _MANY_STEPS:
            raise TooManyError
        for end in self._node(nodes[index], text, at):
            yield from self._run(nodes, index + 1, text, end)

    def _node(self, node: Node, text: str, at: int) -> Iterator[int]:
        opcode, args = node
        if opcode in _ONE:
            return iter([at + 1] if at < len(text) and self._is_one(node, text[at]) else [])
        if opcode in {op.ASSERT, op.ASSERT_NOT}:
            return iter([at] if self._sees(args, text, at) == (opcode is op.ASSERT) else [])
        if opcode is op.AT:
            return iter([at] if self._stands(args, text, at) else [])
        if opcode in _REPEATS:
            return self._repeat(opcode, args, text, at)
        return self._group(opcode, args, text, at)

    def _group(self, opcode: Any, args: Any, text: str, at: int) -> Iterator[int]:
        match opcode:
            case op.BRANCH:
                for branch in args[1]:
                    yield from self._run(list(branch), 0, text, at)
            case op.SUBPATTERN:
                for end in self._run(list(args[3]), 0, text, at):
                    if args[0] is not None:
                        self._groups[args[0]] = text[at:end]
                    yield end
            case op.ATOMIC_GROUP:
                yield from itertools.islice(self._run(list(args), 0, text, at), 1)
            case op.GROUPREF:
                if text.startswith(group := self._groups.get(args, "\0"), at):
                    yield at + len(group)
            case _:
                raise NotImplementedError(opcode)

    def _repeat(self, opcode: Any, args: Any, text: str, at: int) -> Iterator[int]:
        least, most, body = args[0], args[1], list(args[2])
        least, most = min(least, _FEW), most if most is op.MAXREPEAT or most <= _FEW else _FEW
        if len(body) == 1 and body[0][0] in _ONE:
            yield from self._single(opcode, least, most, body[0], text, at)
        elif opcode is op.POSSESSIVE_REPEAT:
            count = 0
            while count < most and (end := next(self._run(body, 0, text, at), at)) > at:
                count, at = count + 1, end
            if count >= least:
                yield at
        else:
            yield from self._many(opcode, least, most, body, text, at)

    def _single(self, opcode: Any, least: int, most: Any, node: Node, text: str, at: int) -> Iterator[int]:
        """A repeated character: lazily one more each time, greedily all at once and then one less each time."""
        if opcode is op.MIN_REPEAT:
            count = 0
            while True:
                self._steps += 1
                if count >= least:
                    yield at + count
                if count >= most or at + count >= len(text) or not self._is_one(node, text[at + count]):
                    return
                count += 1
        count = 0
        while count < most and at + count < len(text) and self._is_one(node, text[at + count]):
            self._steps += 1
            count += 1
        for repeats in range(count, least - 1, -1):
            self._steps += 1
            yield at + repeats
            if opcode is op.POSSESSIVE_REPEAT:
                return

    def _many(self, opcode: Any, least: int, most: Any, body: list[Node], text: str, at: int) -> Iterator[int]:
        if opcode is op.MIN_REPEAT and least <= 0:
            yield at
        if most > 0:
            fewer = most if most is op.MAXREPEAT else most - 1
            for end in self._run(body, 0, text, at):
                if end > at:
                    yield from self._many(opcode, least - 1, fewer, body, text, end)
        if opcode is op.MAX_REPEAT and least <= 0:
            yield at

    def _sees(self, args: Any, text: str, at: int) -> bool:
        direction, nodes = args
        if direction > 0:
            return next(self._run(list(nodes), 0, text, at), None) is not None
        width = nodes.getwidth()[0]
        return at >= width and at in self._run(list(nodes), 0, text, at - width)

    def _stands(self, where: Any, text: str, at: int) -> bool:
        if where in {op.AT_BEGINNING, op.AT_BEGINNING_STRING}:
            return at == 0 or (where is op.AT_BEGINNING and bool(self._flags & re.MULTILINE) and text[at - 1] == "\n")
        if where in {op.AT_END, op.AT_END_STRING}:
            last = at == len(text)
            return last or (
                where is op.AT_END and text[at] == "\n" and (bool(self._flags & re.MULTILINE) or at + 1 == len(text))
            )
        word = [0 <= place < len(text) and (text[place].isalnum() or text[place] == "_") for place in (at - 1, at)]
        return (word[0] != word[1]) == (where is op.AT_BOUNDARY)

    def _is_one(self, node: Node, character: str) -> bool:
        return _one_of(repr(node), self._flags, isinstance(self.pattern.pattern, bytes))(character)

    def pumps(self) -> list[Callable[[int], Text]]:
        """Return makers of texts that keep a repeat in the pattern busy: the text before it, a text that it repeats,
        n times, and a text that does not match."""
        parts: dict[tuple[str, str, str], None] = {}
        for before, body in _repeats(self._tree, ""):
            units = list(dict.fromkeys(unit for unit in (_sample(body, pick) for pick in range(4)) if unit))
            for unit in [*units, *(first + second for first in units for second in units if first != second)][:6]:
                parts |= dict.fromkeys(((before, unit, ""), (before, unit, "\x7f"), ("", before + unit, "\x7f")))
            if before:
                parts[("", before, "")] = None
        for characters in {_sample(self._tree, pick) for pick in range(2)}:
            parts |= dict.fromkeys((("", characters, "\x7f"), *(("", first, "\x7f") for first in characters[:8])))
        wrap: Callable[[str], Text] = (
            (lambda text: text.encode("latin-1", "replace")) if isinstance(self.pattern.pattern, bytes) else str
        )
        return [lambda n, p=pump: wrap(p[0] + p[1] * n + p[2]) for pump in parts if pump[1]]


@cache
def _one_of(node: str, flags: int, is_bytes: bool) -> Callable[[str], bool]:
    """Return whether a character matches a one-character node, by `re` itself."""
    from re import _compiler as compiler  # type: ignore[attr-defined]

    tree = parser.SubPattern(parser.State(), [eval(node, {name: getattr(op, name) for name in dir(op)})])
    tree.state.flags = flags
    tree.state.str = ""
    code = compiler.compile(tree, flags)

    @cache
    def fits(character: str) -> bool:
        return code.match(character.encode("latin-1") if is_bytes else character) is not None

    return fits


def _repeats(nodes: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Yield (a text that precedes it, the repeated nodes) of each repeat without a small bound."""
    for node in nodes:
        opcode, args = node
        if opcode in _REPEATS:
            if args[1] is op.MAXREPEAT or args[1] > _FEW:
                yield before, args[2]
            yield from _repeats(args[2], before)
        elif opcode is op.SUBPATTERN:
            yield from _repeats(args[3], before)
        elif opcode is op.ATOMIC_GROUP:
            yield from _repeats(args, before)
        elif opcode is op.BRANCH:
            for branch in args[1]:
                yield from _repeats(branch, before)
        elif opcode in {op.ASSERT, op.ASSERT_NOT}:
            yield from _repeats(args[1], before)
        before += _sample([node], 0)


def _sample(nodes: Any, pick: int) -> str:
    """Return a text that matches the nodes. Another `pick` may give another text."""
    parts = []
    for opcode, args in nodes:
        if opcode is op.LITERAL:
            parts.append(chr(args))
        elif opcode is op.NOT_LITERAL:
            parts.append(next(character for character in " a-\n" if ord(character) != args))
        elif opcode is op.ANY:
            parts.append(" a<\t"[pick % 4])
        elif opcode is op.IN:
            parts.append(_member(args, pick))
        elif opcode is op.BRANCH:
            parts.append(_sample(args[1][pick % len(args[1])], pick))
        elif opcode is op.SUBPATTERN:
            parts.append(_sample(args[3], pick))
        elif opcode is op.ATOMIC_GROUP:
            parts.append(_sample(args, pick))
        elif opcode in _REPEATS:
            parts.append(_sample(args[2], pick) * min(max(args[0], pick % 2), _FEW))
    return "".join(parts)


def _member(args: Any, pick: int) -> str:
    fits = _one_of(repr((op.IN, args)), 0, False)
    named = [
        chr(character)
        for opcode, value in args
        if opcode in {op.LITERAL, op.RANGE}
        for character in ([value] if opcode is op.LITERAL else value)
    ]
    usable = [character for character in [*" a1\n-.", *named, "é", "字", "_", "\x01", "\x80"] if fits(character)]
    return usable[pick % len(usable)] if usable else ""
