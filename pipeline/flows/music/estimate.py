"""A dry run: what a run would ask of the providers, what that costs, and how long the limits make it take.

Writes nothing. Tokens are estimated at four characters each; the figures below were measured on real replies.
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
"""Of a song in a prompt: id, title, artist."""
ANSWER_TOKENS = 260
"""Of an answer about a song."""
TEXT_TOKENS = 180
"""Of the text that is embedded for a song."""


class Demand(NamedTuple):
    """Songs to describe, and songs that only need a vector, with the characters of their texts to embed."""

    described: int
    vectors_only: int
    chars: int
    new: int


@dataclass(frozen=True)
class Calls:
    """Calls of one step: on which queue, to whom, how many, with how many tokens in and out."""

    queue: str
    provider: str
    model: str
    count: int
    tokens_in: int
    tokens_out: int

    def cost(self, settings: Settings) -> float | None:
        """By the price list; None if the model is not on it."""
        price = settings.providers[self.provider].price(self.model)
        return price.of(self.tokens_in, self.tokens_out) if price else None


def estimate_run(context: Context, options: StartOptions) -> Estimate:
    """What `start` with these options would do. Raises `UserError` for what `start` would refuse."""
    settings = context.settings
    check(settings, options)
    size = int(gates.live_values(context)[BATCH_SIZE_SETTING].value)
    demand = _demand(context, options)
    calls = {step: made for step, made in _calls(settings, options.mode, demand, size).items() if made.count}
    costs = {step: made.cost(settings) for step, made in calls.items()}
    priced = [cost for cost in costs.values() if cost is not None]
    limits = _limits(context, list(calls.values()))
    counts = {step: made.count for step, made in calls.items()}
    return Estimate(
        mode=options.mode,
        songs=demand.described + demand.vectors_only,
        new_songs=min(demand.new, demand.described),
        batches=math.ceil(demand.described / size) + math.ceil(demand.vectors_only / size),
        metadata_calls=counts.get(Step.METADATA, 0),
        embedding_calls=counts.get(Step.EMBED, 0),
        input_tokens=sum(made.tokens_in for made in calls.values()),
        output_tokens=sum(made.tokens_out for made in calls.values()),
        seconds=max((seconds for _, seconds in limits.values()), default=0.0),
        limits={name: text for name, (text, _) in limits.items()},
        cost=sum(priced) if priced or not calls else None,
        unpriced=sorted({f"{made.provider} ({made.model})" for step, made in calls.items() if costs[step] is None}),
    )


def parts(context: Context, options: StartOptions) -> list[Part]:
    """What a run may cost the caller who asks for it, for their account; the library is only read if there is a cap."""
    with context.db.read() as session:
        capped = bool(CALLER.get()) and accounts.cap(session) > 0
    if not capped:
        return []
    try:
        found = estimate_run(context, options)
    except (UnitError, OSError):  # a library that is away is read later, and adds its songs then
        found = estimate_run(context, replace(options, skip_sync=True))
    return [Part(max(1, found.batches), (found.cost or 0.0) / max(1, found.batches))]


def _demand(context: Context, options: StartOptions) -> Demand:
    """The songs of a run; within its limit, those that only need a vector come first."""
    left = math.inf if options.limit is None else options.limit
    new = 0 if options.skip_sync or options.mode is Mode.EMBEDDING else sync.preview(context)
    count, chars = _wanted(context, options, vectors_only=True)
    vectors_only = int(min(count, left))
    described = 0.0
    if options.mode is not Mode.EMBEDDING:
        described = min(_wanted(context, options, vectors_only=False)[0] + new, left - vectors_only)
    return Demand(int(described), vectors_only, chars * vectors_only // count if count else 0, new)


def _wanted(context: Context, options: StartOptions, *, vectors_only: bool) -> tuple[int, int]:
    """(songs, characters of their texts)."""
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
    """Each step of a batch is one call."""
    music = settings.music
    batches = math.ceil(demand.described / size)
    found = {}
    if mode is not Mode.EMBEDDING:
        overhead = (len(SYSTEM) + len(json.dumps(REPLY_SCHEMA))) // CHARS_A_TOKEN
        found[Step.METADATA] = Calls(
            queue_of(settings, mode, Step.METADATA),
            music.provider,
            registry.model_name(settings, music.provider, music.model),
            batches,
            batches * overhead + demand.described * SONG_TOKENS,
            demand.described * ANSWER_TOKENS,
        )
    if music.embeddings_provider and mode is not Mode.METADATA:
        new_texts, new_batches = (demand.described, batches) if mode is Mode.FULL else (0, 0)
        found[Step.EMBED] = Calls(
            queue_of(settings, mode, Step.EMBED),
            music.embeddings_provider,
            registry.model_name(settings, music.embeddings_provider, music.embeddings_model),
            math.ceil(demand.vectors_only / size) + new_batches,
            demand.chars // CHARS_A_TOKEN + new_texts * TEXT_TOKENS,
            0,
        )
    return found


def _limits(context: Context, calls: list[Calls]) -> dict[str, tuple[str, float]]:
    """The limits in force for these calls, each with the least time it takes: a queue's, or all of a provider's."""
    live = gates.live_values(context)
    scopes: dict[str, list[Calls]] = {}
    for made in calls:
        for scope in (f"queue.{made.queue}", f"provider.{made.provider}"):
            scopes.setdefault(scope, []).append(made)
    found = {}
    for scope, mine in scopes.items():
        if (key := f"{scope}.limits") in live:
            text, tokens = str(live[key].value), sum(made.tokens_in + made.tokens_out for made in mine)
            name = scope.removeprefix("queue.").replace("provider.", "provider ", 1)
            found[name] = text, least_s(sum(made.count for made in mine), text, tokens)
    return found


def least_s(calls: int, limits: str, tokens: int = 0) -> float:
    """The least time in which these limits let this many calls, with this many tokens, begin."""
    waits = [0.0]
    for window in parse_windows(limits) if calls else []:
        used = calls if window.unit is Unit.REQUESTS else tokens
        waits.append(max(0, (used - 1) // window.limit) * window.window_s)
    return max(waits)
