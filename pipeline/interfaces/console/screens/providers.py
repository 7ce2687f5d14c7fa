"""Providers: list, test, change and add them. For administrators."""

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field, SecretStr, StringConstraints
from starlette.responses import Response

from pipeline.engine.errors import UserError
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import BLANK
from pipeline.interfaces.console.page import screen
from pipeline.interfaces.http.dependencies import ByCaller, InContext, admin, seeing
from pipeline.interfaces.http.fields import CLEAN, Line
from pipeline.operations import providers
from pipeline.operations.providers import FAIL, ProviderForm, prices_of
from pipeline.settings import config_path
from pipeline.standalone.locks import is_supervised
from pipeline.standalone.supervisor import ask_for_restart

router = APIRouter(prefix="/console/settings/providers", include_in_schema=False, dependencies=seeing)
ProviderName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
Price = Annotated[Annotated[float, Field(ge=0, le=1e6)] | None, BLANK]
Key = Annotated[str, StringConstraints(max_length=4000, strip_whitespace=True), CLEAN]
Model = Annotated[str, StringConstraints(max_length=120, strip_whitespace=True), CLEAN]


class Fields(BaseModel):
    """The form of a provider."""

    model_config = {"hide_input_in_errors": True}
    name: ProviderName
    kind: Literal["openai_compatible", "nodes"] = "openai_compatible"
    base_url: Line = ""
    model: Model = ""
    api_key: Key = Field(default="", repr=False)
    input_price: Price = None
    output_price: Price = None


@router.get("")
def list_providers(request: Request, caller: ByCaller) -> HTMLResponse:
    """Show all providers with the current settings, which processes read when they start."""
    configured, settings = providers.configured.by(caller), caller.context.settings
    return screen(
        request,
        "settings/providers.html",
        providers=configured,
        prices_of=prices_of,
        file=config_path(),
        restarts=is_supervised(settings),
        waits=any(provider.needs_restart for provider in configured),
        default=settings.provider,
    )


@router.post("", dependencies=admin)
def save(request: Request, caller: ByCaller, form: Annotated[Fields, Form()]) -> Response:
    """Write a provider into the configuration file."""
    key = SecretStr(form.api_key)
    prices = form.input_price, form.output_price
    wanted = ProviderForm(form.name, form.kind, form.base_url.strip(), form.model, key, *prices)
    providers.save.by(caller, wanted)
    words = f"{form.name} is saved. Test it now; workers and this server use it after a restart."
    return done(request, words, "/console/settings/providers")


@router.post("/restart", dependencies=admin)
def restart(request: Request, context: InContext) -> Response:
    """Ask the supervisor to restart workers and servers. Raises `UserError` if none runs them."""
    if not ask_for_restart(context.settings):
        raise UserError("no supervisor runs these workers: restart them where you started them", code="not_supervised")
    return done(request, "Workers and this server restart: workers finish their work or give it back.")


@router.post("/{name}/test", dependencies=admin)
def test(request: Request, caller: ByCaller, name: ProviderName) -> Response:
    """Test the provider, as `penstock doctor` does."""
    check = providers.test.by(caller, name)
    if check.result == FAIL:
        raise UserError(f"{name} cannot be used: {check.found} ({check.advice})", code="provider_failed")
    return done(request, f"{name}: {check.found}" + (f" ({check.advice})" if check.advice else ""))
