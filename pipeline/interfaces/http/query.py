"""Refuse unknown query parameters: if the server ignored `provider=local`, it would send the file elsewhere."""

from difflib import get_close_matches
from typing import Any

from fastapi import Depends, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request

from pipeline.interfaces.http.bodies import is_upload

_FORM = "multipart/form-data"


async def _known(request: Request) -> None:
    """Raise `RequestValidationError` (422) for parameters that the route does not take. It says of each where to send
    it, the nearest name, or which names the route takes."""
    if not request.query_params:
        return
    parameters, fields, form_fields = _names(request.scope["route"])
    kind = request.headers.get("content-type", "").strip().lower()
    if is_upload(request.headers) and not kind.startswith(_FORM):
        parameters |= form_fields  # the body is the file, so the query has its options
    unknown = [name for name in request.query_params if name not in parameters]
    errors = []
    for name in unknown:
        if name in form_fields:
            advice = f"{name[:60]} is a form field: send it as -F {name[:60]}=…"
        elif name in fields:
            advice = f"{name[:60]} is a field of the JSON body: send it there"
        else:
            near = get_close_matches(name[:60], sorted(parameters | form_fields | fields), n=1)
            suggestion = f"; did you mean {near[0]}?" if near else ""
            takes = (
                f"; this address takes {', '.join(sorted(parameters))}" if parameters else "; this address takes none"
            )
            advice = f"unknown parameter{suggestion or takes}"
        errors.append({"loc": ("query", name), "msg": advice})
    if errors:
        raise RequestValidationError(errors)


def _names(route: APIRoute) -> tuple[set[str], set[str], set[str]]:
    """The names of the query parameters, the fields of the JSON body, and those of the form other than files."""
    known_fields = get_flat_params(route.dependant)
    parameters = {field.alias for field in known_fields if isinstance(field.field_info, params.Query)}
    body = route.body_field.field_info.annotation if route.body_field else None
    content: dict[str, Any] = (route.openapi_extra or {}).get("requestBody", {}).get("content", {})
    form: dict[str, Any] = content.get(_FORM, {}).get("schema", {}).get("properties", {})
    form_fields = {name for name, kind in form.items() if "binary" not in str(kind)}
    if "pages" in form_fields:
        form_fields.add("page_range")  # its first name, which scripts use
    fields: set[str] = set()
    if isinstance(body, type) and issubclass(body, BaseModel):
        fields = {field.alias or name for name, field in body.model_fields.items()}
    return parameters, fields, form_fields


known_query = [Depends(_known)]
"""For the routes of all APIs."""
