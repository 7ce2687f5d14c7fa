"""Real files for tests, on machines that have them: see the corpus's own README."""

import os
from pathlib import Path

import pytest

CORPUS = Path(os.environ.get("PENSTOCK_CORPUS") or Path(__file__).resolve().parents[3] / "shared" / "corpus")
FIELD = CORPUS.parent / "field"


def field_file(name: str) -> Path:
    """Return the file `name` of public error reports, which are not ours to pass on. Without it, skip the test."""
    path = FIELD / name
    if not path.is_file():
        pytest.skip(f"{path} is absent: a file of a public error report")
    return path


def corpus_file(name: str) -> Path:
    """Return the corpus file `name`, such as `documents/password.pdf`. Without it, skip the test; fail in CI."""
    path = CORPUS / name
    if path.is_file():
        return path
    reason = f"{path} is absent; set PENSTOCK_CORPUS to the folder with the test corpus"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
