"""Operations on the providers of the configuration file: show them without keys, add and change them."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr, ValidationError

from pipeline.engine.errors import PenstockError, UnitError, UserError
from pipeline.engine.wire import VIEW
from pipeline.operations.operation import acts, reads
from pipeline.providers import registry
from pipeline.reading.web import addresses
from pipeline.settings import LOCAL, ProviderProfile, Settings, UnreadableSettingsError, config_path
from pipeline.settings.config_file import Change, UneditableFileError, change, variables_of_provider
from pipeline.settings.providers import gateway_urls
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"


@dataclass(frozen=True)
class Check:
    """A check of `penstock doctor`: its result, its finding, and advice."""

    __pydantic_config__ = VIEW
    name: str
    result: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""
    """What to do; empty if all is well."""


@dataclass(frozen=True)
class ConfiguredProvider:
    """A provider with the current settings, without its key."""

    name: str
    profile: ProviderProfile
    has_key: bool
    needs_restart: bool
    """Whether the running processes started with other settings."""
    variables: list[str]
    """Environment variables that set it, and override the file."""


@dataclass(frozen=True)
class ProviderForm:
    """The values of a form; an empty value changes nothing. Prices are for a million tokens of `model`."""

    name: str
    kind: str
    base_url: str
    model: str
    api_key: SecretStr
    input_price: float | None = None
    output_price: float | None = None


def read() -> Settings:
    """Read the settings of the file and the environment as they are now, not as this process started. Raises
    `UserError`."""
    try:
        return Settings()
    except (UnreadableSettingsError, ValidationError) as error:
        raise UserError(f"{config_path()} is invalid: `penstock doctor` says why", code="settings") from error


def _configured(context: Context) -> list[ConfiguredProvider]:
    """Return all providers of the current settings, by name."""
    now, running = read(), context.settings
    return [
        ConfiguredProvider(
            name,
            profile,
            bool(profile.api_key.get_secret_value()),
            running.providers.get(name) != profile,
            variables_of_provider(name),
        )
        for name, profile in sorted(now.providers.items())
    ]


def _save(_: Context, form: ProviderForm) -> None:
    """Check the provider's values, and write them into the configuration file. Writes nothing if it raises
    `UserError`."""
    if form.name == LOCAL:
        raise UserError(f"'{LOCAL}' is this machine itself: choose another name", code="invalid")
    if variables := variables_of_provider(form.name):
        raise UserError(
            f"{variables[0]} sets '{form.name}' where Penstock runs, and the environment overrides the file: change "
            "it there",
            code="set_by_environment",
        )
    known = read().providers.get(form.name)
    key = form.api_key.get_secret_value()
    fields = {"kind": form.kind, "base_url": form.base_url, "model": form.model, "api_key": key}
    values = {name: value for name, value in fields.items() if value}
    try:
        profile = ProviderProfile.model_validate((known.model_dump() if known else {}) | values)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UserError(f"{where}: {first['msg'].removeprefix('Value error, ')}", code="invalid") from None
    _check_address(profile)
    keeps_key = known is not None and known.api_key.get_secret_value() and not key
    if known is not None and keeps_key and profile.base_url != known.base_url:
        raise UserError("enter the key as well: the stored key belongs to the old address", code="no_key")
    if not (profile.model or profile.kind == "nodes"):
        raise UserError("name a model", code="no_model")
    if profile.lacks_key and not keeps_key:
        raise UserError(f"{profile.base_url} needs a key", code="no_key")
    if (form.input_price is None) != (form.output_price is None):
        raise UserError("give both prices or none; 0 means free", code="invalid")
    changes: list[Change] = [(("providers", form.name), values)]
    prices = {"input": form.input_price, "output": form.output_price}
    if given_prices := {name: price for name, price in prices.items() if price is not None}:
        changes.append((("providers", form.name, "prices", profile.model), given_prices))
    try:
        change(config_path(), changes)
    except UneditableFileError as error:
        raise UserError(str(error), code="settings") from error


def _test(_: Context, name: str) -> Check:
    """Run the check of `penstock doctor` with the provider's current settings; its finding hides the key. Raises
    `UserError` if unknown."""
    now = read()
    if name not in now.providers:
        raise UserError(registry.unknown(now, name), code="unknown_provider")
    check, key = provider_check(now, name), now.providers[name].api_key.get_secret_value()
    # Services quote the key that they refuse.
    return Check(check.name, check.result, check.found.replace(key, "…") if key else check.found, check.advice)


def provider_check(settings: Settings, name: str) -> Check:
    """Probe the provider, free of charge; return `ok`, `warn` if its model is not listed, or `fail` with the error."""
    try:
        finding = registry.probe(settings, name)
    except PenstockError as error:
        return Check(f"provider {name}", FAIL, str(error), "check its base_url, api_key and model")
    listed = "is not among" not in finding  # some services list only some of their models
    return Check(f"provider {name}", OK if listed else WARN, finding, "" if listed else "check its model")


configured = reads(_configured, Scope.ADMIN)
save, test = acts(_save, Scope.ADMIN), acts(_test, Scope.ADMIN)


def _check_address(profile: ProviderProfile) -> None:
    """Raise `UserError` for an address where clouds hand out credentials, or with a user, password, query or anchor.
    This machine and its network are allowed."""
    urls = gateway_urls(profile.base_url) if profile.kind == "nodes" else (profile.base_url,)
    for url in urls:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise UserError("base_url: leave out user, password, query and anchor", code="invalid")
        host = parts.hostname or ""
        try:
            hosts = [str(ipaddress.ip_address(host))]
        except ValueError:
            hosts = _resolved(host, parts.port or 443)
        try:
            addresses.checked(host, hosts, True)
        except UnitError as error:
            raise UserError(f"base_url: {error}", code="address_refused") from error


def _resolved(host: str, port: int) -> list[str]:
    """The addresses of a host; empty if its name does not resolve, which the test of the provider reports."""
    try:
        return addresses.resolve(host, port)
    except (OSError, ValueError):
        return []


def prices_of(profile: ProviderProfile) -> Mapping[str, float]:
    """Return the prices of the provider's own model by their names in the file; empty: unknown."""
    price = profile.price(profile.model)
    return price.model_dump() if price else {}
