"""What a call may cost: by the provider's prices, and by the tokens that calls of its kind used lately."""

from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.engine.traces import AiCall
from pipeline.engine.transaction import ReadTx
from pipeline.providers import registry
from pipeline.settings import Settings

_LATELY = 100
"""Reads this many of the provider's newest calls."""
_TYPICAL: Final = {
    "page_to_markdown": (1_200, 400),
    "vlm_analyze_shard": (2_000, 1_000),
    "text_expand": (2_500, 1_000),
    "embed_nodes": (300, 0),
    "embed_query": (20, 0),
}
"""Tokens in and out of a call of this operation, as long as none is on record; none for others."""
CHARS_A_TOKEN = 4


def of_call(tx: ReadTx, provider: str, model: str, operation: str) -> float:
    """The estimate for one call of this operation: what its largest of late used, at this model's price.

    Takes the dearest of the provider and its fallbacks. 0: none of them has a price.
    """
    dearest, seen = 0.0, set[str]()
    while (profile := tx.settings.providers.get(provider)) is not None and provider not in seen:
        seen.add(provider)
        if price := profile.price(model or registry.model_name(tx.settings, provider)):
            dearest = max(dearest, price.of(*_tokens(tx, provider, operation)))
        provider, model = profile.fallback, ""
    return dearest


def of_text(settings: Settings, provider: str, model: str, characters: int) -> float:
    """The estimate for having a text of this length embedded."""
    profile = settings.providers.get(provider)
    price = profile.price(model or registry.model_name(settings, provider)) if profile else None
    return price.of(-(-characters // CHARS_A_TOKEN), 0) if price else 0.0


def _tokens(session: Session, provider: str, operation: str) -> tuple[int, int]:
    columns = (AiCall.operation, AiCall.status, AiCall.input_tokens, AiCall.output_tokens)
    lately = select(*columns).where(AiCall.provider == provider).order_by(AiCall.created_at.desc()).limit(_LATELY)
    found = lately.subquery()
    mine = (found.c.operation == operation, found.c.status == "ok")
    most = select(func.max(found.c.input_tokens), func.max(found.c.output_tokens)).where(*mine)
    tokens_in, tokens_out = session.execute(most).one()
    return (tokens_in, tokens_out or 0) if tokens_in else _TYPICAL.get(operation, (0, 0))
