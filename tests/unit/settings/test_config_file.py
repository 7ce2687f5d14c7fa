"""The settings file is changed in place: comments stay, and only its user may read it."""

import stat
import tomllib
from pathlib import Path

import pytest

from pipeline.settings.config_file import UneditableFileError, change, changed

TEXT = """\
# Ours
log_level = "INFO"  # for now

[providers.ai]   # the old one
base_url = "http://127.0.0.1:9"  # in the cellar
api_key = 'old'
# limits = "1/s"

[providers.ai.prices."a model"]
input = 1
"""


def test_a_changed_key_leaves_comments_and_other_tables_as_they_are() -> None:
    text = changed(TEXT, [(("providers", "ai"), {"api_key": 'new "x"\\', "model": "m"})])
    assert text == TEXT.replace("api_key = 'old'\n", 'api_key = "new \\"x\\"\\\\"\nmodel = "m"\n')


def test_tables_that_are_not_there_are_added_at_the_end() -> None:
    text = changed(TEXT, [(("providers", "b"), {"model": "m"}), (("providers", "b", "prices", "m:1"), {"input": 2.5})])
    assert text.startswith(TEXT)
    assert tomllib.loads(text)["providers"]["b"] == {"model": "m", "prices": {"m:1": {"input": 2.5}}}
    assert changed("", [(("providers", "b"), {"model": "m"})]) == '[providers.b]\nmodel = "m"\n'


@pytest.mark.parametrize(
    "text",
    ['providers = {ai = {model = "m"}}\n', '[providers]\nai = {model = "m"}\n', '[providers.ai]\nmodel = """a\nb"""\n'],
)
def test_a_form_that_cannot_be_changed_with_certainty_is_refused(text: str) -> None:
    with pytest.raises(UneditableFileError, match="edit it by hand"):
        changed(text, [(("providers", "ai"), {"model": "n"})])


def test_the_file_becomes_its_users_alone_and_a_broken_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(TEXT)
    path.chmod(0o644)
    change(path, [(("providers", "ai"), {"api_key": "new"})])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("not = [toml")
    with pytest.raises(UneditableFileError, match="not valid TOML"):
        change(path, [(("providers", "ai"), {"api_key": "new"})])
    assert path.read_text() == "not = [toml"
