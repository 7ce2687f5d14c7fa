"""Open WebUI's document loaders without the package, which has gigabytes: three files of its wheel.

`python open_webui_loaders.py FOLDER` fetches them; `load(FOLDER)` imports them. Empty modules replace the rest of Open
WebUI, which the loaders import and do not use to load a document.
"""

import importlib
import subprocess
import sys
import tempfile
import zipfile
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

VERSION = "0.12.4"
_FOLDER = "open_webui/retrieval/loaders"
_FILES = ("external_document.py", "main.py", "mineru.py")
_SETTINGS = {
    "open_webui.env": {"GLOBAL_LOG_LEVEL": "INFO", "AIOHTTP_CLIENT_SESSION_SSL": True, "REQUESTS_VERIFY": True},
    # Both add configured headers, and none are configured here.
    "open_webui.utils.headers": {
        "parse_custom_headers": lambda *_, **__: {},
        "include_user_info_headers": lambda headers, *_, **__: headers,
    },
}


class Loaders(NamedTuple):
    """Return the three classes."""

    docling: type
    external: type
    mineru: type


def fetch(folder: Path) -> None:
    """Download the three files to `folder` if they are missing."""
    if all((folder / _FOLDER / name).is_file() for name in _FILES):
        return
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        pip += ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--dest", temporary]
        subprocess.run([*pip, f"open-webui=={VERSION}"], check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in _FILES:
                archive.extract(f"{_FOLDER}/{name}", folder)


def load(folder: Path) -> Loaders:
    """Import the loaders from the files of `fetch`."""
    sys.meta_path.append(_Absent())
    sys.path.insert(0, str(folder))
    main = importlib.import_module("open_webui.retrieval.loaders.main")
    return Loaders(main.DoclingLoader, main.ExternalDocumentLoader, main.MinerULoader)


class _Absent(MetaPathFinder, Loader):
    """Finds modules of the loaders' packages that no other finder has."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in {"open_webui", "azure", "ftfy"} or PathFinder.find_spec(name, path):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Empty(spec.name)
        module.__dict__.update(_SETTINGS.get(spec.name, {}))
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""


class _Empty(ModuleType):
    """Has an empty object for every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
