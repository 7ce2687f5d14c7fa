"""The context of the Python API. It works without an earlier `penstock up` or `penstock migrate`."""

from pipeline.operations.caller import owner
from pipeline.storage.context import Context


def get_context() -> Context:
    """The context of this process, whose database has this version's schema."""
    return owner().context
