"""Numbers with their nouns and units, for people."""


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 page`, `2 pages`, `3 batches`, `1,000 songs`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def duration(seconds: float | None) -> str:
    """Return a time in words, `0.9 s`, `41 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    hours, minutes = divmod(whole // 60, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"
