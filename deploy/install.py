"""Install packages with uv in seconds or, without uv, with pip in minutes.

    python deploy/install.py ENVIRONMENT/bin/python ARGUMENTS [-- ARGUMENTS …]

Each group holds the arguments of one `pip install`, limited to those that uv has too. The Python that runs this
script gets uv by its hash. uv does not read pip's configuration, so it gets pip's indexes and certificates as
variables. With `INSTALLER=pip` in the environment, pip installs.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

UV_LOCK = Path(__file__).parent.parent / "requirements-uv.lock"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
UV = (sys.executable, "-m", "uv")
_SOURCES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""uv's environment variables by pip's settings."""

_SECTIONS = ("global", "install", ":env:")
"""Of pip's configuration; a later one overrides an earlier one."""

_DETAIL = re.compile(r" [+~-] |  (Downloading|Using cached) |(Ignoring|Installing collected|Successfully installed) ")
"""Lines that say of each package what the lock says."""


def main(python: str, groups: Sequence[Sequence[str]], installer: str) -> bool:
    """Install each group of arguments into the environment of `python`. Return whether all succeeded."""
    if installer not in {"uv", "pip"}:
        sys.exit(f"INSTALLER is uv or pip, not {installer}")
    if installer == "uv":
        if get_uv():
            uv, environment = [*UV, "pip", "install", "--python", python], uv_environment(Path(python))
            if all(_run([*uv, *group], environment) for group in groups):
                return True
        sys.stderr.write("uv does not work here.\n")
    sys.stderr.write("pip installs the packages: it takes minutes where uv takes seconds.\n")
    pip = [*PIP, "--python", python, "install", "--progress-bar", "off"]
    return all(_run([*pip, *group], os.environ) for group in groups)


def get_uv() -> bool:
    """Install uv beside this Python, if there is a wheel of it for this machine."""
    only = ("--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", str(UV_LOCK))
    return _run([*PIP, "install", "--quiet", *only], os.environ)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether the command succeeded. Its output goes to standard error as progress, without the details."""
    with subprocess.Popen(  # noqa: S603  # the Makefile and the Dockerfiles give the arguments
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if not _DETAIL.match(line):
                sys.stderr.write(line)
                sys.stderr.flush()
    return process.returncode == 0


def _answer(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()  # noqa: S603


def _pip_settings() -> dict[str, str]:
    """Return pip's settings from files and the environment, by pip's names."""
    listed = _answer([*PIP, "config", "list"])
    settings = re.findall(r"^(global|install|:env:)\.([\w-]+)=(.+)$", listed, re.MULTILINE)
    settings.sort(key=lambda setting: _SECTIONS.index(setting[0]))
    return {name: ast.literal_eval(value) for _, name, value in settings}


def uv_environment(python: Path) -> dict[str, str]:
    """Return uv's environment for pip's settings. The caller's own settings for uv win."""
    pip = _pip_settings()
    variables = {
        "UV_SYSTEM_CERTS": "1",
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # pip's own: all indexes are one
    }
    for name, variable in _SOURCES.items():
        if name in pip:
            variables[variable] = ("," if name == "find-links" else " ").join(pip[name].split())
    cache = _answer([*UV, "cache", "dir"])
    if _device(Path(cache)) != _device(python.parent):
        variables["UV_LINK_MODE"] = "copy"  # hard links do not reach across file systems
    return variables | os.environ


def _device(folder: Path) -> int:
    """Return the file system that the folder is on, or would be on once it exists."""
    return next(path for path in (folder, *folder.parents) if path.exists()).stat().st_dev


if __name__ == "__main__":
    groups = [list(words) for ends, words in groupby(sys.argv[2:], "--".__eq__) if not ends]
    sys.exit(0 if main(sys.argv[1], groups, os.environ.get("INSTALLER", "uv")) else 1)
