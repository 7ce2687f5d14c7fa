"""Webhooks: events are sent to other people's endpoints, signed by the Standard Webhooks specification."""

from pipeline.flows.webhooks.settings import webhooks_of
from pipeline.providers.gates import Declaration

DECLARATION = Declaration(settings=webhooks_of)
