"""Vectors of songs: who makes them, in which space (only vectors of one space can be compared), and where they go."""

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sqlalchemy import update

from pipeline.engine.transaction import Tx
from pipeline.flows.music.models import SONGS
from pipeline.providers import registry
from pipeline.providers.protocols import Embeddings
from pipeline.settings import LOCAL, Settings
from pipeline.storage import vectors

if TYPE_CHECKING:
    from pipeline.storage.vectors.codes import Floats

KIND = "song"
"""Of the items in the vector store."""


def embeddings(settings: Settings) -> Embeddings:
    """What makes vectors of songs: the configured provider, or lexical ones without any. Raises `UserError`."""
    music = settings.music
    return registry.embeddings(settings, music.embeddings_provider or LOCAL, music.embeddings_model)


def vector_space(settings: Settings) -> str:
    """Provider and model of the vectors that are made now."""
    maker = embeddings(settings)
    return f"{maker.name}:{maker.model}"


def is_lexical(settings: Settings) -> bool:
    """Whether vectors know words only: no provider of embeddings is configured."""
    return not settings.music.embeddings_provider


def paid_vectors(batch: Any) -> "dict[int, Floats]":
    """A batch's stored vectors, by song id."""
    ids: list[int] = json.loads(batch.vector_ids) if batch.vector_ids else []
    return dict(zip(ids, vectors.unpack(batch.vectors, len(ids)), strict=True)) if ids else {}


def keep_vectors(tx: Tx, batch: Any, members: Collection[int]) -> set[int]:
    """Give a batch's paid vectors to those of its songs that are still in it; their ids."""
    found = {song_id: vector for song_id, vector in paid_vectors(batch).items() if song_id in members}
    vectors.upsert(tx, KIND, batch.vector_model, found.items())
    if found:
        tx.execute(update(SONGS).where(SONGS.c.id.in_(list(found))).values(vector_model=batch.vector_model))
    return set(found)
