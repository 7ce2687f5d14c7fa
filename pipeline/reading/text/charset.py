"""Decode bytes as text: detect their encoding, or that they are not text."""

import codecs
import re

from pipeline.reading.sandbox.limits import refused

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SAMPLE_BYTES = 200_000  # A larger sample takes seconds and detects no more.
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MAX_CONTROLS = 0.01
_MAX_GUESSED_CHAOS = 0.1
_WIDE_SHARE = 0.3
_CHARSETS = re.compile(
    r"utf-(?!7)|ascii|iso8859|iso2022|latin|cp\d|koi8|shift_jis|euc|gb|big5|hz|johab|tis|mac-|ptcp|kz1048"
)
_MEANT = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gb2312": "gb18030",
    "gbk": "gb18030",
}
"""The encoding that browsers use for a declared one: the larger encoding of the same family."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(data: bytes, name: str, declared: str = "") -> str:
    """Return the text in `data`. `declared`: the encoding named by a server or the file itself, tried after UTF-8.

    Line ends become `\\n`, and NULs are removed. Raises `UnitError` with code `unsupported` if `data` is not text.
    """
    text = _decoded(data, declared)
    if text is None:
        raise refused(f"{name} is not text, and no other known kind of file.", "unsupported")
    return _SURROGATE.sub("\ufffd", text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def utf8(data: bytes) -> str | None:
    """Return the text in `data` if it is plainly UTF-8, without detection; otherwise None."""
    if _binary(data) or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return None
    text = _strictly(data, "utf-8-sig")
    return None if text is None else text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _decoded(data: bytes, declared: str) -> str | None:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    if (wide := _wide_encoding(data[:_SAMPLE_BYTES])) and (text := _strictly(data, wide)) is not None:
        return text
    if _binary(data):
        return None
    for encoding in ("utf-8", declared):
        if encoding and (text := _strictly(data, encoding)) is not None:
            return text
    sample = data[:_SAMPLE_BYTES]
    from charset_normalizer import from_bytes  # noqa: PLC0415  # most texts name their charset

    best = from_bytes(sample).best()
    if best is None or best.chaos > _MAX_GUESSED_CHAOS:
        # UTF-8 with a few damaged bytes reads better than an encoding that fits all of them.
        text = data.decode("utf-8", "replace")
        return text if text.count("\ufffd") <= _MAX_CONTROLS * len(text) else None
    return data.decode(best.encoding, "replace")


def _strictly(data: bytes, encoding: str) -> str | None:
    try:
        name = codecs.lookup(encoding).name
        # Python's own codecs, such as punycode and unicode_escape, are not encodings of files, and some are slow.
        return data.decode(_MEANT.get(name, name)) if _CHARSETS.match(name) else None
    except (LookupError, ValueError):
        return None


def _binary(data: bytes) -> bool:
    sample = data[:_SAMPLE_BYTES]
    return len(_CONTROLS.findall(sample)) > _MAX_CONTROLS * len(sample)


def _wide_encoding(sample: bytes) -> str:
    """Return `utf-16-le` or `utf-16-be` if the sample looks like UTF-16 without a byte order mark: every other byte of
    text in European languages is zero. Otherwise empty."""
    pairs = len(sample) // 2
    if not pairs:
        return ""
    even, odd = sample[0::2].count(0) / pairs, sample[1::2].count(0) / pairs
    if odd > _WIDE_SHARE and even < 0.05:
        return "utf-16-le"
    return "utf-16-be" if even > _WIDE_SHARE and odd < 0.05 else ""
