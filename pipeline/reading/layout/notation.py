"""Mathematical notation in running text: short formulas with raised and lowered parts as LaTeX.

Fonts tell formulas from text: a letter of a mathematical font is a variable, and a raised figure beside words of a text
font is a note's mark. Letters and signs stay as they are (`$σ_i^2$`), so that a search finds them.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from pipeline.reading.layout.model import Run, Runs, Style

_FONT = re.compile(
    r"math|^(?:CM|LC|TC)?(?:MI|SY|EX|BSY|MIB)\d|^(?:CMMI|CMSY|CMEX|CMBSY|CMMIB|MS[AB]M|EU[FRS][MB]|RSFS|STMARY|ESINT|WASY"
    r"|BBM|DSROM|MTMI|MTSY|MTEX|MTExtra|Symbol|Euclid|MnSymbol|StandardSym|(?:New)?[TP]X(?:B?MI|B?SY|EX)|R?[tp]x(?:b?mi|b?sy|ex)"
    r"|(?:rtx|rpx|ntx|npx)|zp?lmi|fut?mi|STIX(?:Size|Var|Nonuni|Integrals))",
    re.IGNORECASE,
)
OPERATORS = "=<>+−±∓×÷∗∘∼≈≃≅≡≠≤≥≪≫∝∈∉⊂⊆⊗⊕∧∨∩∪→←↔⇒⇔↦∣∥⊥"
SIGNS = re.compile("[=<>+±×÷\u2190-\u21ff\u2200-\u22ff\u27c0-\u27ef\u2980-\u2aff\U0001d400-\U0001d7ff\uf8e5-\uf8fe√∞]")
"""Characters of formulas. Greek letters are not among them, since words have them, too."""

_PIECES = re.compile(r"\s+|[^\s.,;:!?]+|[.,;:!?]+")
_NEUTRAL = re.compile(rf"(?:[\d()\[\]{{}}|/.,;:!'′*·…-]|{SIGNS.pattern}|[Ͱ-Ͽ](?![Ͱ-Ͽ]))+")
_MARKS = re.compile(r"[∗*†‡§¶∥]+")
_LOOSE = ".,;:!?"
_PAIRS = ("()", "[]", "{}")
_MOST = 100
_ESCAPES = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "%#&{}$_"},
        "\\": "\\backslash ",
        "^": "\\hat{}",
        "~": "\\sim ",
        "<": "\\lt ",
        "*": "∗",
        "`": "‘",
    }
)


@lru_cache(maxsize=1024)
def is_math_font(name: str) -> bool:
    """Whether a font of this name has the letters or signs of formulas."""
    return bool(_FONT.search(name))


class _Piece(NamedTuple):
    """A piece of a run without spaces, or the spaces between two."""

    text: str
    style: Style

    @property
    def in_math_font(self) -> bool:
        return is_math_font(self.style.font)

    @property
    def may_belong(self) -> bool:
        """Whether the piece may be a part of a formula."""
        if self.style.link or self.style.mono or not self.text.strip():
            return False
        return bool(self.style.shift) or self.in_math_font or bool(_NEUTRAL.fullmatch(self.text))

    @property
    def is_operator(self) -> bool:
        return not self.style.shift and self.text.strip(_LOOSE)[:1] in OPERATORS and bool(self.text.strip(_LOOSE))


def parts(runs: Runs) -> Iterator[str | Runs]:
    """Yield, in order, the short formulas with raised or lowered parts as LaTeX in dollar signs, and the runs between
    them."""
    if not any(run.style.shift for run in runs) or not any(is_math_font(run.style.font) for run in runs):
        yield runs
        return
    pieces = [_Piece(text, run.style) for run in runs for text in _PIECES.findall(run.text)]
    waiting: list[_Piece] = []
    at = 0
    while at < len(pieces):
        end = _end(pieces, at)
        start, stop = _trimmed(pieces, at, end)
        if _is_formula(pieces[start:stop]):
            waiting += pieces[at:start]
            if waiting:
                yield _runs(waiting)
            yield f"${_latex(pieces[start:stop])}$"
            waiting = pieces[stop:end]
        else:
            waiting += pieces[at:end]
        at = end
    if waiting:
        yield _runs(waiting)


def _runs(pieces: Sequence[_Piece]) -> Runs:
    return tuple(
        Run("".join(piece.text for piece in same), style)
        for style, same in groupby(pieces, key=lambda piece: piece.style)
    )


def _end(pieces: Sequence[_Piece], start: int) -> int:
    """Return the index after the last piece of the formula that may start here, at least `start + 1`. A formula goes on
    after a space only beside an operator."""
    end = start + 1
    if not pieces[start].may_belong:
        return end
    while end < len(pieces):
        if pieces[end].may_belong:
            end += 1
        elif (
            pieces[end].text.isspace()
            and end + 1 < len(pieces)
            and pieces[end + 1].may_belong
            and (pieces[end - 1].is_operator or pieces[end + 1].is_operator)
        ):
            end += 2
        else:
            break
    return end


def _trimmed(pieces: Sequence[_Piece], start: int, end: int) -> tuple[int, int]:
    """Return (start, end) without the signs and brackets at the ends that belong to the sentence."""
    while start < end:
        text = "".join(piece.text for piece in pieces[start:end] if not piece.style.shift)
        last, first = pieces[end - 1], pieces[start]
        loose = {sign for pair in _PAIRS for sign in pair if text.count(pair[0]) != text.count(pair[1])}
        note = end - start > 1 and last.style.shift and pieces[end - 2].text[-1] in _LOOSE
        if note or (not last.style.shift and (last.is_operator or set(last.text) <= {*_LOOSE, *loose, " "})):
            end -= 1
        elif not first.style.shift and set(first.text) <= {*_LOOSE, *loose, " "}:
            start += 1
        else:
            break
    return start, end


def _is_formula(pieces: Sequence[_Piece]) -> bool:
    """Whether the pieces have a letter or sign of a formula, and one of them is raised or lowered beside another."""
    evident = any(piece.in_math_font and not _MARKS.fullmatch(piece.text) for piece in pieces)
    shifted = [bool(piece.style.shift) for piece in pieces if piece.text.strip()]
    if not evident or not any(shifted) or all(shifted) or sum(len(piece.text) for piece in pieces) > _MOST:
        return False
    text = "".join(piece.text for piece in pieces)
    return all(text.count(pair[0]) == text.count(pair[1]) for pair in _PAIRS)


def _latex(pieces: Sequence[_Piece]) -> str:
    out = []
    for shift, same in groupby(pieces, key=lambda piece: piece.style.shift):
        words = list(same)
        inner = "".join(_escaped(piece) for piece in words).strip()
        if not shift:
            out.append("".join(_escaped(piece) for piece in words))
        elif inner:
            out.append(("^" if shift > 0 else "_") + (inner if len(inner) == 1 else f"{{{inner}}}"))
    return " ".join("".join(out).split())


def _escaped(piece: _Piece) -> str:
    text = piece.text.translate(_ESCAPES)
    worded = len(piece.text) > 1 and piece.text.isalpha() and piece.text.isascii() and not piece.in_math_font
    return f"\\text{{{text}}}" if worded else text
