"""Every setting by the name of its variable, also those that flows and the gateway keep in their own packages."""

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel

from pipeline.flows.knowledge.settings import KnowledgeSettings
from pipeline.flows.webhooks.settings import WebhookSettings
from pipeline.nodes.settings import GatewaySettings
from pipeline.settings import ProviderProfile, Settings


class Everything(Settings):
    """All settings in one model."""

    knowledge: KnowledgeSettings = KnowledgeSettings()
    webhooks: WebhookSettings = WebhookSettings()
    gateway: GatewaySettings = GatewaySettings()


def described(
    model: type[BaseModel] = Everything, prefix: str = "PENSTOCK_"
) -> Iterator[tuple[str, type[BaseModel], str]]:
    """Yield (variable, model, field) of every setting. `<NAME>` stands for a provider's name."""
    for name, field in model.model_fields.items():
        variable = prefix + name.upper()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from described(field.annotation, f"{variable}__")
            continue
        yield variable, model, name
        if field.annotation == dict[str, ProviderProfile]:
            yield from described(ProviderProfile, f"{variable}__<NAME>__")


def by_default(folder: str, **values: Any) -> Settings:
    """Return settings with this data folder, independent of the caller's environment and file."""
    with patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
            del os.environ[name]
        os.environ["PENSTOCK_DATA_DIR"] = folder
        return Settings(**values)
