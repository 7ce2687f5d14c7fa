"""Numbers with their nouns, for people."""


def count(number: int, noun: str) -> str:
    """`1 page`, `2 pages`, `3 batches`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
