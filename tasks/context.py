"""The context for Python's way in: like a command, it works without `penstock up` or `penstock migrate` before it."""

from pipeline.operations.caller import owner
from pipeline.storage.context import Context


def get_context() -> Context:
    """The context of this process, of a database with this version's schema."""
    return owner().context
