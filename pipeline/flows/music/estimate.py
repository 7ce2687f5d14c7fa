"""A dry run: what a run would ask of the providers, what that costs, and how long the limits make it take.

Writes nothing. Tokens are estimated at four characters each; the figures below were measured on real replies.
"""

import json
import math
from dataclasses import dataclass, field

from sqlalchemy import func, or_, select

from pipeline.engine.gate import Unit
from pipeline.engine.limits import parse_windows
from pipeline.flows.music.library import sync
from pipeline.flows.music.live import BATCH_SIZE_SETTING
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


@dataclass(frozen=True)
class Demand:
    """Songs to describe, and songs that only need a vector, with the characters of their texts to embed."""

    described: int
    vectors_only: int
    chars: int
    new: int


@dataclass
class Calls:
    """Calls of one queue: to whom, how many, with how many tokens in and out."""

    provider: str = ""
    model: str = ""
    count: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def cost(self, settings: Settings) -> float | None:
        """By the price list; None if the model is not on it."""
        prices = settings.providers[self.provider].prices
        price = prices.get(self.model) or prices.get("*")
        return price.of(self.tokens_in, self.tokens_out) if price else None


@dataclass
class Ceilings:
    """Limits that hold together: of a queue, or of all of a provider's."""

    text: str
    calls: list[Calls] = field(default_factory=list)

    def least_s(self) -> float:
        """The least time in which they let all these calls begin."""
        count = sum(calls.count for calls in self.calls)
        tokens = sum(calls.tokens_in + calls.tokens_out for calls in self.calls)
        return least_s(count, self.text, tokens)


def estimate_run(context: Context, options: StartOptions) -> Estimate:
    """What `start` with these options would do. Raises `UserError` for what `start` would refuse."""
    settings = context.settings
    check(settings, options)
    size = int(gates.live_values(context)[BATCH_SIZE_SETTING].value)
    demand = _demand(context, options)
    calls = {name: found for name, found in _calls(settings, options.mode, demand, size).items() if found.count}
    costs = {name: found.cost(settings) for name, found in calls.items()}
    priced = [cost for cost in costs.values() if cost is not None]
    ceilings = _ceilings(context, calls)
    by_step = {step: queue_of(settings, options.mode, step) for step in (Step.METADATA, Step.EMBED)}
    counted = {step: calls[name].count if name in calls else 0 for step, name in by_step.items()}
    return Estimate(
        mode=options.mode, songs=demand.described + demand.vectors_only, new_songs=min(demand.new, demand.described),
        batches=math.ceil(demand.described / size) + math.ceil(demand.vectors_only / size),
        metadata_calls=counted[Step.METADATA], embedding_calls=counted[Step.EMBED],
        input_tokens=sum(found.tokens_in for found in calls.values()),
        output_tokens=sum(found.tokens_out for found in calls.values()),
        seconds=max((found.least_s() for found in ceilings.values()), default=0.0),
        limits={name: found.text for name, found in ceilings.items()},
        cost=sum(priced) if priced or not calls else None,
        unpriced=sorted({f"{calls[name].provider} ({calls[name].model})" for name in costs if costs[name] is None}),
    )  # fmt: skip


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


def _calls(settings: Settings, mode: Mode, demand: Demand, size: int) -> dict[str, Calls]:
    """By queue. Each step of a batch is one call."""
    music = settings.music
    batches = math.ceil(demand.described / size)
    found = {}
    if mode is not Mode.EMBEDDING:
        overhead = (len(SYSTEM) + len(json.dumps(REPLY_SCHEMA))) // CHARS_A_TOKEN
        found[queue_of(settings, mode, Step.METADATA)] = Calls(
            music.provider, registry.model_name(settings, music.provider, music.model), batches,
            batches * overhead + demand.described * SONG_TOKENS, demand.described * ANSWER_TOKENS,
        )  # fmt: skip
    if music.embeddings_provider and mode is not Mode.METADATA:
        new_texts = demand.described if mode is Mode.FULL else 0
        found[queue_of(settings, mode, Step.EMBED)] = Calls(
            music.embeddings_provider,
            registry.model_name(settings, music.embeddings_provider, music.embeddings_model),
            math.ceil(demand.vectors_only / size) + (batches if mode is Mode.FULL else 0),
            demand.chars // CHARS_A_TOKEN + new_texts * TEXT_TOKENS,
        )  # fmt: skip
    return found


def _ceilings(context: Context, calls: dict[str, Calls]) -> dict[str, Ceilings]:
    """The limits in force for these calls: each queue's, and each provider's over all its queues."""
    live = gates.live_values(context)
    found: dict[str, Ceilings] = {}
    for name, made in calls.items():
        for key in (f"queue.{name}.limits", f"provider.{made.provider}.limits"):
            if key in live:
                short = name if key.startswith("queue.") else f"provider {made.provider}"
                found.setdefault(short, Ceilings(str(live[key].value))).calls.append(made)
    return found


def least_s(calls: int, limits: str, tokens: int = 0) -> float:
    """The least time in which these limits let this many calls, with this many tokens, begin."""
    waits = [0.0]
    for window in parse_windows(limits) if calls else []:
        used = calls if window.unit is Unit.REQUESTS else tokens
        waits.append(max(0, (used - 1) // window.limit) * window.window_s)
    return max(waits)
