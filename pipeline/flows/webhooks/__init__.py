"""Webhooks: Penstock sends events to other people's endpoints, signed by the Standard Webhooks specification."""

from pipeline.engine.gate_registry import Declaration
from pipeline.flows.webhooks.settings import webhooks_of

DECLARATION = Declaration(settings=webhooks_of)
