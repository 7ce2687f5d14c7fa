"""Who makes vectors of songs, and what they are called: only vectors of one space can be compared."""

from pipeline.providers import registry
from pipeline.providers.protocols import Embeddings
from pipeline.settings import LOCAL, Settings


def embeddings(settings: Settings) -> Embeddings:
    """What makes vectors of songs: the configured provider, or lexical ones without any. Raises `UserError`."""
    music = settings.music
    return registry.embeddings(settings, music.embeddings_provider or LOCAL, music.embeddings_model)


def space_of(settings: Settings) -> str:
    """Provider and model of the vectors that are made now."""
    made_by = embeddings(settings)
    return f"{made_by.name}:{made_by.model}"


def is_lexical(settings: Settings) -> bool:
    """Whether vectors know words only: no provider of embeddings is configured."""
    return not settings.music.embeddings_provider
