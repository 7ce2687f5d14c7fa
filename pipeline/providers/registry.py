"""The providers by name. Names come from `settings.providers`; `local` always exists.

Each provider is created once per process and kept, so that threads share its connections.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

from redis import Redis, RedisError

from pipeline.engine.errors import UserError
from pipeline.engine.presence import Presence
from pipeline.providers.protocols import Embeddings, PageConverter, Text, Vision
from pipeline.settings import LOCAL, ProviderProfile, Settings

if TYPE_CHECKING:
    from pipeline.providers.nodes import Nodes
    from pipeline.providers.openai_compatible import OpenAICompatible

T = TypeVar("T")

MAX_MODEL_CHARS = 120
"""The length of a model's name in the tables."""

_instances: dict[tuple[object, ...], object] = {}


def page_converter(settings: Settings, provider: str, model: str = "") -> PageConverter:
    """Return the converter of pages into Markdown; `model` replaces the profile's. Raises `UserError`."""
    check(settings, provider, model)
    if provider == LOCAL:
        # Imported late: workers that only call services never need the PDF and OCR libraries.
        from pipeline.providers.local import LocalConverter  # noqa: PLC0415

        return _keep(("pages", LOCAL, settings.model_dump_json()), lambda: LocalConverter(settings))
    profile, service = _profile(settings, provider), _service(settings, provider, model)
    if profile.kind == "nodes":
        from pipeline.providers.node_pages import NodePages  # noqa: PLC0415

        return _keep(("pages", *_identity(settings, provider, model)), lambda: NodePages(cast("Nodes", service)))
    from pipeline.providers.vision_pages import VisionConverter  # noqa: PLC0415

    return _keep(
        ("pages", *_identity(settings, provider, model)), lambda: VisionConverter(cast("OpenAICompatible", service))
    )


def vision(settings: Settings, provider: str, model: str = "") -> Vision:
    """Return the model that answers prompts about pictures. Raises `UserError`, also for `local`."""
    return _service(settings, provider, model)


def text(settings: Settings, provider: str, model: str = "") -> Text:
    """Return the model that answers prompts. Raises `UserError`, also for `local`."""
    return _service(settings, provider, model)


def embeddings(settings: Settings, provider: str, model: str = "") -> Embeddings:
    """Return the maker of vectors from texts; that of `local` knows words, not meaning, and ignores `model`. Raises
    `UserError`."""
    if provider == LOCAL:
        from pipeline.providers.lexical import LexicalEmbeddings  # noqa: PLC0415  # import NumPy only when needed

        return _keep(("lexical", LOCAL), LexicalEmbeddings)
    return _service(settings, provider, model)


def probe(settings: Settings, provider: str) -> str:
    """Request the provider's models, or a session of a gateway, free of charge; return the result in words.

    Raises `PenstockError` if the provider cannot be used, also for `local`.
    """
    check(settings, provider)
    return _service(settings, provider, "").probe()


def model_name(settings: Settings, provider: str, model: str = "") -> str:
    """Return `model`, or if that is empty the name of the provider's model; an unknown provider's is its own name."""
    profile = settings.providers.get(provider)
    return model or (profile.model if profile else provider)


def cuts_pictures(settings: Settings, provider: str) -> bool:
    """Whether the provider's page converter can save the pictures on pages as files. Raises `UserError` for an unknown
    one."""
    return provider == LOCAL or _profile(settings, provider).kind == "nodes"


def check(settings: Settings, provider: str, model: str = "") -> None:
    """Raise `UserError` if this provider and model cannot do work: `unknown_provider`, `unknown_model`, `no_model`,
    `no_key`, `unknown_preset`."""
    if len(model) > MAX_MODEL_CHARS or not model.isprintable():
        message = (
            f"{model[:MAX_MODEL_CHARS]!r} is not a model: names have at most {MAX_MODEL_CHARS} printable characters"
        )
        raise UserError(message, code="unknown_model")
    if provider == LOCAL:
        if model not in {"", LOCAL}:
            raise UserError(f"provider '{LOCAL}' has no model '{model}': leave the model out", code="unknown_model")
        return
    profile = _profile(settings, provider)
    if not (model or profile.model or profile.kind == "nodes"):  # a node may choose
        message = f"provider '{provider}' has no model: name one, or set {_variable(provider)}MODEL"
        raise UserError(message, code="no_model")
    if profile.lacks_key and not settings.keyless:
        raise UserError(f"provider '{provider}' needs a key: set {_variable(provider)}API_KEY", code="no_key")
    from pipeline.providers import presets  # noqa: PLC0415  # local conversion needs none

    try:
        presets.chosen(profile, model or profile.model)
    except UserError as error:
        raise UserError(f"{_variable(provider)}PRESET: {error}", code=error.code) from None


def check_workers(redis: "Redis", provider: str) -> None:
    """Raise `UserError` (`settings`) if a running worker does not know the provider and would fail the work.

    Checks nothing while Redis is unreachable.
    """
    with suppress(RedisError):
        for facts in Presence(redis).facts().values():
            if provider not in facts.get("providers", [provider]):
                raise UserError(unknown_to_workers(provider), code="settings")


def unknown_to_workers(provider: str) -> str:
    """Return the error message for a provider that the submitter knows but the workers do not."""
    return (
        f"the running stack does not know the provider '{provider}': it was started without these "
        "settings. Stop it (`penstock up`, `penstock watch`, or your workers) and start it again with them"
    )


def _profile(settings: Settings, provider: str) -> ProviderProfile:
    if provider in settings.providers:
        return settings.providers[provider]
    raise UserError(unknown(settings, provider), code="unknown_provider")


def names(settings: Settings) -> list[str]:
    """Return the names of all providers, `local` first."""
    return [LOCAL, *sorted(set(settings.providers) - {LOCAL})]


def unknown(settings: Settings, provider: str) -> str:
    """Return the error message for an unknown provider: it names the known ones, and says how to add this one."""
    known = ", ".join(f"'{name}'" for name in names(settings))
    prefix = _variable(provider or "name")
    return (
        f"there is no provider '{provider}'; known are {known}. To add it, set {prefix}BASE_URL, {prefix}API_KEY and "
        f"{prefix}MODEL, or the same fields under [providers.{provider or 'name'}] in penstock.toml; for "
        f"inference nodes, {prefix}KIND=nodes as well"
    )


def _variable(provider: str) -> str:
    return f"PENSTOCK_PROVIDERS__{provider.upper()}__"


def _service(settings: Settings, provider: str, model: str) -> "OpenAICompatible | Nodes":
    if provider == LOCAL:
        raise UserError(f"provider '{LOCAL}' converts pages only: name another for this", code="unsupported")
    check(settings, provider, model)
    profile, key = _profile(settings, provider), ("service", *_identity(settings, provider, model))
    # Imported late: the SDK takes half a second, which local conversion and nodes never need.
    if profile.kind == "nodes":
        from pipeline.providers.nodes import Nodes  # noqa: PLC0415

        return _keep(key, lambda: Nodes(provider, profile, model))
    from pipeline.providers.openai_compatible import OpenAICompatible  # noqa: PLC0415

    return _keep(key, lambda: OpenAICompatible(provider, profile, model))


def _identity(settings: Settings, provider: str, model: str) -> tuple[str, ...]:
    """Return the key under which to keep an instance: provider, model, profile, and its API key as a hash, so that
    dumps of the cache hide that."""
    profile = _profile(settings, provider)
    secret = hashlib.sha256(profile.api_key.get_secret_value().encode()).hexdigest()
    return provider, model or profile.model, profile.model_dump_json(), secret


def _keep(key: tuple[str, ...], make: Callable[[], T]) -> T:
    """Return this process's instance under `key`, created if missing.

    Without a lock, which a fork could leave locked forever: if two are created at once, both work and one is kept.
    """
    process_key = (os.getpid(), *key)
    if process_key not in _instances:
        _instances.setdefault(process_key, make())
    return cast("T", _instances[process_key])
