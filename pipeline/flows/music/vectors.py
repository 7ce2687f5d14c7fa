"""Vectors of songs: their provider, their space (only vectors of one space are comparable), and their storage."""

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
"""The kind of the items in the vector store."""


def embeddings(settings: Settings) -> Embeddings:
    """Return the maker of songs' vectors: the configured provider, else lexical vectors. Raises `UserError`."""
    music = settings.music
    return registry.embeddings(settings, music.embeddings_provider or LOCAL, music.embeddings_model)


def vector_space(settings: Settings) -> str:
    """Return `provider:model` of new vectors; only vectors of one space are comparable."""
    maker = embeddings(settings)
    return f"{maker.name}:{maker.model}"


def is_lexical(settings: Settings) -> bool:
    """Whether vectors are lexical, since no provider of embeddings is configured."""
    return not settings.music.embeddings_provider


def paid_vectors(batch: Any) -> "dict[int, Floats]":
    """Return the vectors that a batch holds until they are saved to its songs, by song id; empty without any."""
    ids: list[int] = json.loads(batch.vector_ids) if batch.vector_ids else []
    return dict(zip(ids, vectors.unpack(batch.vectors, len(ids)), strict=True)) if ids else {}


def keep_vectors(tx: Tx, batch: Any, members: Collection[int]) -> set[int]:
    """Store a batch's paid vectors for the songs that are still in it, and return their ids."""
    by_song = {song_id: vector for song_id, vector in paid_vectors(batch).items() if song_id in members}
    vectors.upsert(tx, KIND, batch.vector_model, by_song.items())
    if by_song:
        tx.execute(update(SONGS).where(SONGS.c.id.in_(list(by_song))).values(vector_model=batch.vector_model))
    return set(by_song)
