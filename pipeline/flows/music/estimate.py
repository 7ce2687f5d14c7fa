"""A dry run: estimates a run's calls, their cost, and the least time under the limits.

Writes nothing. Counts four characters as a token; the figures below were measured on real replies.
"""

import json
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import func, or_, select

from pipeline.engine import accounts
from pipeline.engine.accounts import CALLER, Part
from pipeline.engine.errors import UnitError
from pipeline.engine.gate import Unit
from pipeline.engine.limits import parse_windows
from pipeline.flows.music.library import sync
from pipeline.flows.music.live_settings import BATCH_SIZE_SETTING
from pipeline.flows.music.models import SONGS
from pipeline.flows.music.routes import queue_of
from pipeline.flows.music.rules.prompts import SYSTEM
from pipeline.flows.music.rules.schemas import REPLY_SCHEMA
from pipeline.flows.music.service import StartOptions, check
from pipeline.flows.music.states import Mode, SongStatus, Step
from pipeline.flows.music.vectors import vector_space
from pipeline.flows.music.views import Estimate
from pipeline.flows.music.work.selection import needs_vector_only, wanted_songs
from pipeline.providers import gates, registry
from pipeline.settings import Settings
from pipeline.storage.context import Context

CHARS_A_TOKEN = 4
SONG_TOKENS = 35
"""Tokens of a song in a prompt: id, title, artist."""
ANSWER_TOKENS = 260
"""Tokens of an answer about a song."""
TEXT_TOKENS = 180
"""Tokens of a song's text to embed."""


class Demand(NamedTuple):
    """Songs to describe, songs that only need a vector with the characters of their texts, and songs new to a sync."""

    described: int
    vectors_only: int
    chars: int
    new: int


@dataclass(frozen=True)
class Calls:
    """The calls of one step: queue, provider, model, number, and tokens in and out."""

    queue: str
    provider: str
    model: str
    count: int
    tokens_in: int
    tokens_out: int

    def cost(self, settings: Settings) -> float | None:
        """Return the cost by the price list; None for a model without a price."""
        price = settings.providers[self.provider].price(self.model)
        return price.of(self.tokens_in, self.tokens_out) if price else None


def estimate_run(context: Context, options: StartOptions) -> Estimate:
    """Estimate a run with these options. Raises the `UserError` that `start` would raise for bad options, but works
    during an active run."""
    settings = context.settings
    check(settings, options)
    size = int(gates.live_values(context)[BATCH_SIZE_SETTING].value)
    demand = _demand(context, options)
    steps = {step: calls for step, calls in _calls(settings, options.mode, demand, size).items() if calls.count}
    costs = {step: calls.cost(settings) for step, calls in steps.items()}
    priced = [cost for cost in costs.values() if cost is not None]
    limits = _limits(context, list(steps.values()))
    counts = {step: calls.count for step, calls in steps.items()}
    return Estimate(
        mode=options.mode,
        songs=demand.described + demand.vectors_only,
        new_songs=min(demand.new, demand.described),
        batches=math.ceil(demand.described / size) + math.ceil(demand.vectors_only / size),
        metadata_calls=counts.get(Step.METADATA, 0),
        embedding_calls=counts.get(Step.EMBED, 0),
        input_tokens=sum(calls.tokens_in for calls in steps.values()),
        output_tokens=sum(calls.tokens_out for calls in steps.values()),
        seconds=max((seconds for _, seconds in limits.values()), default=0.0),
        limits={name: text for name, (text, _) in limits.items()},
        cost=sum(priced) if priced or not steps else None,
        unpriced=sorted({f"{calls.provider} ({calls.model})" for step, calls in steps.items() if costs[step] is None}),
    )


def parts(context: Context, options: StartOptions) -> list[Part]:
    """Return what a run may cost the caller; empty, without reading the library, if the caller's account has no cap."""
    with context.db.read() as session:
        capped = bool(CALLER.get()) and accounts.cap(session) > 0
    if not capped:
        return []
    try:
        estimate = estimate_run(context, options)
    except (UnitError, OSError):  # the run's sync will read an unreachable library later
        estimate = estimate_run(context, replace(options, skip_sync=True))
    return [Part(max(1, estimate.batches), (estimate.cost or 0.0) / max(1, estimate.batches))]


def _demand(context: Context, options: StartOptions) -> Demand:
    """Return how many songs a run would describe and embed. Of a limited number of songs, those that only need a vector
    come first. Reads the whole library, unless the sync is skipped or the mode is `embedding`."""
    remaining = math.inf if options.limit is None else options.limit
    new = 0 if options.skip_sync or options.mode is Mode.EMBEDDING else sync.preview(context)
    count, chars = _wanted(context, options, vectors_only=True)
    vectors_only = int(min(count, remaining))
    described = 0.0
    if options.mode is not Mode.EMBEDDING:
        described = min(_wanted(context, options, vectors_only=False)[0] + new, remaining - vectors_only)
    return Demand(int(described), vectors_only, chars * vectors_only // count if count else 0, new)


def _wanted(context: Context, options: StartOptions, *, vectors_only: bool) -> tuple[int, int]:
    """Return (songs to take up, characters of their texts)."""
    wanted = wanted_songs(options.mode, vector_space(context.settings))
    if options.failed and options.mode is not Mode.EMBEDDING:
        failed = (SONGS.c.status == SongStatus.FAILED) & SONGS.c.missing_since.is_(None) & SONGS.c.batch_id.is_(None)
        wanted = or_(wanted, failed)
    which = needs_vector_only(options.mode)
    chars = func.coalesce(func.sum(func.length(SONGS.c.vector_text)), 0)
    query = select(func.count(), chars).where(wanted, which if vectors_only else ~which)
    with context.db.read() as session:
        songs, characters = session.execute(query).one()
    return int(songs), int(characters)


def _calls(settings: Settings, mode: Mode, demand: Demand, size: int) -> dict[Step, Calls]:
    """Return the calls of each step: one call for each batch."""
    music = settings.music
    batches = math.ceil(demand.described / size)
    by_step = {}
    if mode is not Mode.EMBEDDING:
        overhead = (len(SYSTEM) + len(json.dumps(REPLY_SCHEMA))) // CHARS_A_TOKEN
        by_step[Step.METADATA] = Calls(
            queue_of(settings, mode, Step.METADATA),
            music.provider,
            registry.model_name(settings, music.provider, music.model),
            batches,
            batches * overhead + demand.described * SONG_TOKENS,
            demand.described * ANSWER_TOKENS,
        )
    if music.embeddings_provider and mode is not Mode.METADATA:
        new_texts, new_batches = (demand.described, batches) if mode is Mode.FULL else (0, 0)
        by_step[Step.EMBED] = Calls(
            queue_of(settings, mode, Step.EMBED),
            music.embeddings_provider,
            registry.model_name(settings, music.embeddings_provider, music.embeddings_model),
            math.ceil(demand.vectors_only / size) + new_batches,
            demand.chars // CHARS_A_TOKEN + new_texts * TEXT_TOKENS,
            0,
        )
    return by_step


def _limits(context: Context, calls: list[Calls]) -> dict[str, tuple[str, float]]:
    """Return the limits of these calls' queues and providers, by name, each with the least time under it."""
    live = gates.live_values(context)
    scopes: dict[str, list[Calls]] = {}
    for each in calls:
        for scope in (f"queue.{each.queue}", f"provider.{each.provider}"):
            scopes.setdefault(scope, []).append(each)
    by_name = {}
    for scope, limited in scopes.items():
        if (key := f"{scope}.limits") in live:
            text, tokens = str(live[key].value), sum(each.tokens_in + each.tokens_out for each in limited)
            name = scope.removeprefix("queue.").replace("provider.", "provider ", 1)
            by_name[name] = text, least_s(sum(each.count for each in limited), text, tokens)
    return by_name


def least_s(calls: int, limits: str, tokens: int = 0) -> float:
    """Return the least seconds in which these limits admit this many calls with this many tokens."""
    waits = [0.0]
    for window in parse_windows(limits) if calls else []:
        used = calls if window.unit is Unit.REQUESTS else tokens
        waits.append(max(0, (used - 1) // window.limit) * window.window_s)
    return max(waits)
