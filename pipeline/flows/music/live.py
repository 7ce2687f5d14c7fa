"""The live settings of the music flow, as they are in force. Source 002, section 5."""

from pipeline.engine import live
from pipeline.providers.gates import BATCH_SIZE_SETTING, CONCURRENCY_SETTING, known_settings
from pipeline.storage.context import Context


def concurrency(context: Context) -> int:
    """Lanes of a run: batches under way at once."""
    return _value(context, CONCURRENCY_SETTING)


def batch_size(context: Context) -> int:
    """Songs in a batch."""
    return _value(context, BATCH_SIZE_SETTING)


def _value(context: Context, key: str) -> int:
    known = known_settings(context.settings)
    with context.db.read() as session:
        return int(live.values(session, {key: known[key]})[0].value)
