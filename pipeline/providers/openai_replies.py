"""What stands in a reply of the OpenAI API: text, tokens, vectors. Nothing of it is taken for granted."""

import sys
from typing import Any

from pipeline.providers.protocols import Usage

HUGE = sys.float_info.max


def text_of(content: object) -> str | None:
    """The text of a message's content, which is a string or a list of parts; None where there is none."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        texts = [text for text in parts if isinstance(text, str)]
        return "".join(texts) if texts else None
    return content if isinstance(content, str) else None


def usage_of(data: dict[str, Any]) -> Usage:
    """Tokens that were used; 0 where the reply does not say, or says nonsense."""
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    tokens = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    return Usage(*(n if isinstance(n, int) and n > 0 else 0 for n in tokens))


def vectors_of(data: dict[str, Any], count: int) -> list[list[float]]:
    """The vectors in the order of the inputs. Raises `ValueError` that says what is wrong with them."""
    items = data.get("data")
    if not isinstance(items, list) or len(items) != count:
        raise ValueError(f"other than {count} vectors")
    placed: dict[int, list[float]] = {}
    for position, item in enumerate(items):
        fields = item if isinstance(item, dict) else {}
        index = fields.get("index", position)
        placed[index if isinstance(index, int) else -1] = vector_of(fields.get("embedding"))
    if placed.keys() != set(range(count)):
        raise ValueError("vectors with a wrong index")
    if len({len(vector) for vector in placed.values()}) != 1:
        raise ValueError("vectors of different lengths")
    return [placed[index] for index in range(count)]


def vector_of(values: object) -> list[float]:
    """One vector. Raises `ValueError` for what is none."""
    if not isinstance(values, list) or not values:
        raise ValueError("an empty vector")
    if not all(isinstance(value, int | float) and -HUGE <= value <= HUGE for value in values):
        raise ValueError("a vector with numbers that are not finite")
    return [float(value) for value in values]
