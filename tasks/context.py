"""The context of the Python API. It works without an earlier `penstock up` or `penstock migrate`."""

from pipeline.operations.caller import owner
from pipeline.storage.context import Context


def get_context() -> Context:
    """Return the context of this process, after migrating an embedded database to this version's schema. Raises
    `UserError`."""
    return owner().context
