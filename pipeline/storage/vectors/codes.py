"""Codes of vectors: the sign of each dimension after a fixed random rotation, one bit each.

This is RaBitQ's idea (Gao and Long, 2024): a rotation spreads every vector evenly over all dimensions, so its signs
alone give its cosine with a query to about 0.02 (1,024 bits), whatever the vectors are. The query keeps four bits per
dimension, which halves the error. The nearest vectors by code must then be compared exactly.

The rotation is a Hadamard transform of flipped signs, twice. It must never change: codes are stored.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Words = NDArray[np.uint64]
_FEWEST_BITS = 1024
_MOST_BITS = 2048
_ROUNDS = 2
_PLANES = 4
"""Bits of each value of a query."""
_PORTION = 2000


def code_bits(dims: int) -> int:
    """Return the number of bits in a vector's code, a multiple of 64."""
    return min(_MOST_BITS, max(_FEWEST_BITS, -(-dims // 64) * 64))


def encode(vectors: Floats) -> list[bytes]:
    """Return the codes of vectors (n, dims)."""
    encoded: list[bytes] = []
    for start in range(0, len(vectors), _PORTION):
        bits = np.packbits(rotated(vectors[start : start + _PORTION]) > 0, axis=1, bitorder="little")
        encoded += [row.tobytes() for row in bits]
    return encoded


def encode_any(vectors: Sequence[Floats]) -> list[bytes]:
    """Return the codes of vectors of any lengths; they usually have one length."""
    if len({len(vector) for vector in vectors}) == 1:
        return encode(np.stack(vectors))
    return [encode(vector[np.newaxis])[0] for vector in vectors]


def words_of(codes: Sequence[bytes], dims: int) -> Words:
    """Return codes as a matrix (words, n): a row holds one word of all codes, since computations go word by word."""
    rows = np.frombuffer(b"".join(codes), dtype="<u8").reshape(len(codes), code_bits(dims) // 64)
    return np.ascontiguousarray(rows.T)


@dataclass(frozen=True)
class Query:
    """A vector to compare with codes, with four bits per dimension."""

    low: float
    step: float
    planes: list[Words]

    @classmethod
    def of(cls, vector: Floats) -> "Query":
        values = rotated(vector[np.newaxis])[0]
        low, high = float(values.min()), float(values.max())
        step = (high - low) / ((1 << _PLANES) - 1) or 1.0
        levels = np.rint((values - low) / step).astype(np.uint8)
        planes = [np.packbits(levels >> plane & 1, bitorder="little").view("<u8") for plane in range(_PLANES)]
        return cls(low, step, planes)

    def likeness(self, words: Words) -> Floats:
        """Return how near each code's vector is to this one: higher is nearer. Only the order has a meaning."""
        # The sum of the query's values where the code has ones, minus that of the others, without its constant part.
        ones = _common_bits(words, np.full(words.shape[0], ~np.uint64(0)))
        total: Floats = self.low * ones.astype(np.float32)
        for plane, mask in enumerate(self.planes):
            total += np.float32(self.step * (1 << plane)) * _common_bits(words, mask)
        return total


def _common_bits(words: Words, mask: Words) -> NDArray[np.uint16]:
    count = np.zeros(words.shape[1], np.uint16)
    for row, bits in zip(words, mask, strict=True):
        count += np.bitwise_count(row & bits)
    return count


def rotated(vectors: Floats) -> Floats:
    """Return the rotated vectors (n, dims): the first `code_bits` dimensions of each."""
    count, dims = vectors.shape
    size = 1 << (max(dims, _FEWEST_BITS) - 1).bit_length()
    left, right = _hadamard(1 << size.bit_length() // 2), _hadamard(size >> size.bit_length() // 2)
    turned = np.zeros((count, size), np.float32)
    turned[:, :dims] = vectors
    for turn in range(_ROUNDS):
        # The transform factorises into two small multiplications instead of a large one.
        grid = (turned * _signs(size, turn)).reshape(count, len(left), len(right))
        turned = (left @ grid @ right).reshape(count, size)
    return turned[:, : code_bits(dims)]


@cache
def _signs(size: int, turn: int) -> Floats:
    # Not from a random generator: another version of NumPy may change its numbers.
    digest = hashlib.shake_256(f"penstock vectors {size} {turn}".encode()).digest(size // 8)
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(np.float32) * 2 - 1


@cache
def _hadamard(size: int) -> Floats:
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]).astype(np.float32)
    return matrix / np.float32(np.sqrt(size))
