"""Read settings from the environment. A value that should be JSON but is not gets an error of one sentence."""

import json
import os
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, SettingsError

_MOST_QUOTED = 200


def wants_traces() -> bool:
    """Whether OpenTelemetry's own variables name a destination for traces."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{of}ENDPOINT") for of in ("", "TRACES_"))


class UnreadableSettingsError(ValueError):
    """Settings cannot be read. The message names their source and the problem."""


class Environment(EnvSettingsSource):
    """Environment variables. Raises `UnreadableSettingsError` with the variable's name for invalid JSON."""

    def __call__(self) -> dict[str, Any]:
        try:
            return super().__call__()
        except SettingsError as error:
            if isinstance(error.__cause__, UnreadableSettingsError):
                raise error.__cause__ from None
            raise

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except (ValueError, RecursionError) as error:  # not JSON, or nested too deeply
            variable = self._variable(field_name, value)
            raise UnreadableSettingsError(
                f"{variable} must be JSON, like {_example(variable, field, value)}"
            ) from error

    def _variable(self, field_name: str, value: Any) -> str:
        """Return the variable that gave this field this value; if several have the value, any, as all are wrong."""
        end = field_name.lower()
        names = [
            name
            for name, set_to in self.env_vars.items()
            if set_to == value and name.startswith(self.env_prefix.lower()) and name.endswith(end)
        ]
        return min(names, key=len, default=f"{self.env_prefix}{end}").upper()


def _example(variable: str, field: Any, value: Any) -> str:
    """Return an example. It quotes only a short list of words: an object may contain a key, and a URL a password."""
    annotation = getattr(field, "annotation", field)
    if get_origin(annotation) is not list:
        return f"{variable}='{{\"name\": …}}'"
    if get_args(annotation) != (str,):
        return f"{variable}='[5, 15]'"
    if len(str(value)) > _MOST_QUOTED or "://" in str(value) or "@" in str(value):
        return f'{variable}=\'["…", "…"]\''
    words = [word.strip(" '\"[]") for word in str(value).split(",")]
    return f"{variable}='{json.dumps([word for word in words if word], ensure_ascii=False)}'"
