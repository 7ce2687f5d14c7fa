"""Penstock refuses another minor version of Celery or kombu, whose private parts may differ."""

import celery
import pytest

from tasks.celery_internals import check_versions


def test_another_minor_version_fails_at_the_start_with_the_version_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_versions()
    monkeypatch.setattr(celery, "VERSION", celery.VERSION._replace(minor=8))
    with pytest.raises(ImportError, match=r"`celery~=5\.7\.0`"):
        check_versions()
