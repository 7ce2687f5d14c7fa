"""Vectors without a service: hashes of a text's words and letter groups, which ignore meaning."""

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.providers.protocols import Vectors

DIMS = 1024
FLOOR = 0.14
"""A cosine above that of unrelated texts, which share dimensions by chance."""
_WORD = re.compile(r"\w+")
_GRAM = 3
_GRAM_WEIGHT = 0.4
"""The weight of a letter group, 1 for words: groups match endings, languages without spaces, and chance likenesses."""


class LexicalEmbeddings:
    """`Embeddings` of words and letter groups by signed feature hashing, of length 1, equal on every machine."""

    name = "local"
    model = f"lexical-{DIMS}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector of length 1 for each text. Raises `UnitError` for an empty text."""
        if any(not text.strip() for text in texts):
            raise UnitError("an empty text has no vector", kind=ErrorKind.PERMANENT, code="empty_input")
        return Vectors([_vector(text) for text in texts], self.model)


def _vector(text: str) -> list[float]:
    vector = np.zeros(DIMS)
    for feature, weight in _features(text.casefold()):
        code = zlib.crc32(feature.encode("utf-8", "replace"))
        vector[code % DIMS] += weight if code & 0x8000_0000 else -weight
    norm = float(np.linalg.norm(vector))
    # Only punctuation: fill one dimension, so that it is a valid vector.
    if norm == 0:
        vector[0] = norm = 1.0
    return [float(value) for value in vector / norm]


def _features(text: str) -> Iterator[tuple[str, float]]:
    words = Counter(_WORD.findall(text))
    for word, count in words.items():
        # A tenth repetition adds little to the first occurrence.
        weight = 1 + float(np.log(count))
        yield f"w:{word}", weight
        padded = f"^{word}$"
        for start in range(len(padded) - _GRAM + 1):
            yield f"g:{padded[start : start + _GRAM]}", weight * _GRAM_WEIGHT
