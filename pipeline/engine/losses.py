"""The rule for a source that has lost most of its content: a disk may be unmounted, or a listing cut short."""

FEW = 4
"""A smaller source may lose more than half of its content unasked, but not all."""


def is_doubtful(known: int, missing: int) -> bool:
    """Whether a person must confirm that `missing` of the `known` entries of a source are gone: all of them, or more
    than half of at least `FEW`."""
    return missing > 0 and (missing >= known or (known >= FEW and 2 * missing > known))


def doubt(known: int, missing: int, entries: str, kept: str) -> str:
    """Return the sentence about a doubtful loss; empty if the loss is plausible. `entries`: the plural of what is
    missing; `kept`: what does not happen."""
    if not is_doubtful(known, missing):
        return ""
    return f"{missing:,} of {known:,} {entries} are missing, so {kept}: is a disk or a server away?"
