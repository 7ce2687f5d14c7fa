"""Estimate the cost of a call from the provider's prices and the tokens of recent calls of its kind."""

from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.engine.traces import AiCall
from pipeline.engine.transaction import ReadTx
from pipeline.providers import registry
from pipeline.settings import Settings

_LATELY = 100
"""How many of the provider's newest calls to read."""
_TYPICAL: Final = {
    "page_to_markdown": (1_200, 400),
    "vlm_analyze_shard": (2_000, 1_000),
    "text_expand": (2_500, 1_000),
    "embed_nodes": (300, 0),
    "embed_query": (20, 0),
}
"""(input, output) tokens of a call of this operation while none is on record; other operations have no estimate."""
CHARS_A_TOKEN = 4


def of_call(tx: ReadTx, provider: str, model: str, operation: str, *, longest: bool = False) -> float:
    """Return an estimate of the cost of one call of this operation: the most tokens of recent calls, at this model's
    price. `longest`: for the longest answer that the settings allow.

    It is the highest estimate of the provider and its fallbacks; 0 if none has a price.
    """
    dearest, seen = 0.0, set[str]()
    while (profile := tx.settings.providers.get(provider)) is not None and provider not in seen:
        seen.add(provider)
        if price := profile.price(model or registry.model_name(tx.settings, provider)):
            tokens_in, tokens_out = _tokens(tx, provider, operation)
            if longest:
                tokens_in, tokens_out = max(tokens_in, profile.estimated_tokens), max(tokens_out, profile.max_tokens)
            dearest = max(dearest, price.of(tokens_in, tokens_out))
        provider, model = profile.fallback, ""
    return dearest


def of_text(settings: Settings, provider: str, model: str, characters: int) -> float:
    """Estimate the cost of embedding a text of this length; 0 without a price."""
    profile = settings.providers.get(provider)
    price = profile.price(model or registry.model_name(settings, provider)) if profile else None
    return price.of(-(-characters // CHARS_A_TOKEN), 0) if price else 0.0


def _tokens(session: Session, provider: str, operation: str) -> tuple[int, int]:
    columns = (AiCall.operation, AiCall.status, AiCall.input_tokens, AiCall.output_tokens)
    lately = select(*columns).where(AiCall.provider == provider).order_by(AiCall.created_at.desc()).limit(_LATELY)
    recent = lately.subquery()
    own = (recent.c.operation == operation, recent.c.status == "ok")
    most = select(func.max(recent.c.input_tokens), func.max(recent.c.output_tokens)).where(*own)
    tokens_in, tokens_out = session.execute(most).one()
    return (tokens_in, tokens_out or 0) if tokens_in else _TYPICAL.get(operation, (0, 0))
