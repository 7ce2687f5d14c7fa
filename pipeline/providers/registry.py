"""Which provider a name stands for.

Providers are made once per process and kept: they share connections between threads. Names come from
`settings.providers`; `local` is always there.
"""

import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from pipeline.engine.errors import UserError
from pipeline.providers.protocols import Embeddings, PageConverter, Text, Vision
from pipeline.providers.vision_pages import VisionConverter
from pipeline.settings import LOCAL, ProviderProfile, Settings

if TYPE_CHECKING:
    from pipeline.providers.openai_compatible import OpenAICompatible

T = TypeVar("T")

MAX_MODEL_CHARS = 120
"""What tables keep of a model's name."""

_made: dict[tuple[object, ...], object] = {}


def page_converter(settings: Settings, provider: str, model: str = "") -> PageConverter:
    """What turns pages into Markdown; `model` replaces the profile's. Raises `UserError`."""
    check(settings, provider, model)
    if provider == LOCAL:
        return _keep(("pages", LOCAL, settings.model_dump_json()), lambda: _local(settings))
    return _keep(("pages", *_identity(settings, provider, model)), lambda: _by_vision(settings, provider, model))


def vision(settings: Settings, provider: str, model: str = "") -> Vision:
    """What looks at pictures. Raises `UserError`."""
    return _service(settings, provider, model)


def text(settings: Settings, provider: str, model: str = "") -> Text:
    """What answers prompts. Raises `UserError`."""
    return _service(settings, provider, model)


def embeddings(settings: Settings, provider: str, model: str = "") -> Embeddings:
    """What turns texts into vectors; those of `local` know words, but no meaning. Raises `UserError`."""
    if provider == LOCAL:
        from pipeline.providers.lexical import LexicalEmbeddings  # noqa: PLC0415  # NumPy waits until it is needed

        return _keep(("lexical", LOCAL), LexicalEmbeddings)
    return _service(settings, provider, model)


def probe(settings: Settings, provider: str) -> str:
    """Ask the provider for its models: what it says, for people. Raises `PenstockError` if it cannot be used."""
    check(settings, provider)
    return _service(settings, provider, "").probe()


def model_name(settings: Settings, provider: str, model: str = "") -> str:
    """What people know the provider's model by, or `model` if that replaces it."""
    profile = settings.providers.get(provider)
    return model or (profile.model if profile else provider)


def check(settings: Settings, provider: str, model: str = "") -> None:
    """Raise `UserError` (`unknown_provider`, `unknown_model`, `no_model`) now, rather than on every page later."""
    if len(model) > MAX_MODEL_CHARS or not model.isprintable():
        message = f"{model[:MAX_MODEL_CHARS]!r} is no model: a name has at most {MAX_MODEL_CHARS} printable characters"
        raise UserError(message, code="unknown_model")
    if provider == LOCAL:
        if model not in {"", LOCAL}:
            raise UserError(f"provider '{LOCAL}' has no model '{model}': leave the model out", code="unknown_model")
        return
    profile = _profile(settings, provider)
    if not (model or profile.model):
        message = f"provider '{provider}' has no model: name one, or set {_variable(provider)}MODEL"
        raise UserError(message, code="no_model")


def _profile(settings: Settings, provider: str) -> ProviderProfile:
    if provider in settings.providers:
        return settings.providers[provider]
    known = ", ".join(f"'{name}'" for name in [LOCAL, *sorted(set(settings.providers) - {LOCAL})])
    prefix = _variable(provider or "name")
    message = (
        f"there is no provider '{provider}'; known are {known}. To add it, set {prefix}BASE_URL, {prefix}API_KEY and "
        f"{prefix}MODEL, or the same fields under [providers.{provider or 'name'}] in penstock.toml"
    )
    raise UserError(message, code="unknown_provider")


def _variable(provider: str) -> str:
    return f"PENSTOCK_PROVIDERS__{provider.upper()}__"


def _service(settings: Settings, provider: str, model: str) -> "OpenAICompatible":
    if provider == LOCAL:
        raise UserError(f"provider '{LOCAL}' converts pages only: name another for this", code="unsupported")
    check(settings, provider, model)
    return _keep(("service", *_identity(settings, provider, model)), lambda: _connect(settings, provider, model))


def _connect(settings: Settings, provider: str, model: str) -> "OpenAICompatible":
    # Imported late: the SDK takes half a second, which local conversion never needs.
    from pipeline.providers.openai_compatible import OpenAICompatible  # noqa: PLC0415

    return OpenAICompatible(provider, _profile(settings, provider), model)


def _by_vision(settings: Settings, provider: str, model: str) -> PageConverter:
    return VisionConverter(_service(settings, provider, model), _profile(settings, provider))


def _local(settings: Settings) -> PageConverter:
    # Imported late: PDF and OCR libraries, which workers that only call services never need.
    from pipeline.providers.local import LocalConverter  # noqa: PLC0415

    return LocalConverter(settings)


def _identity(settings: Settings, provider: str, model: str) -> tuple[str, ...]:
    """All that an instance depends on. The key takes part as a hash, so that it is in no dump of the cache."""
    profile = _profile(settings, provider)
    secret = hashlib.sha256(profile.api_key.get_secret_value().encode()).hexdigest()
    return provider, model or profile.model, profile.model_dump_json(), secret


def _keep(key: tuple[str, ...], make: Callable[[], T]) -> T:
    """The instance under `key` in this process, made if there is none.

    Without a lock, which a fork could leave locked for ever: of two made at once both are sound and one is kept.
    """
    here = (os.getpid(), *key)
    if here not in _made:
        _made.setdefault(here, make())
    return cast("T", _made[here])
