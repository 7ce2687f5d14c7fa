"""The public interfaces equal their snapshots: moving code changes no address, field or command."""

import difflib

import pytest
from pydantic import BaseModel, Field

from tests.support.snapshots import FOLDER, SNAPSHOTS, snapshot
from tests.support.snapshots.fields import Fields


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_interface_is_the_one_of_the_snapshot(name: str) -> None:
    before, now = (FOLDER / name).read_text(encoding="utf-8").splitlines(), snapshot(name).splitlines()
    changes = "\n".join(difflib.unified_diff(before, now, f"tests/data/snapshots/{name}", "the code", n=0, lineterm=""))
    assert not changes, (
        f"the interface differs from its snapshot:\n{changes}\n\n"
        "If that is meant, `make snapshots` writes it anew, and CHANGELOG.md says what changed. If not, mend the code."
    )


def test_every_snapshot_is_compared() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(SNAPSHOTS)


class _Part(BaseModel):
    """A part."""

    size: int = Field(ge=1, description="In millimetres.")
    under: "list[_Part] | None" = None


class _Renamed(BaseModel):
    """The same as others know it."""

    size: int = Field(ge=1, title="Length")
    under: "list[_Renamed] | None" = None


class _Wider(BaseModel):
    size: int = Field(ge=0)
    under: "list[_Wider] | None" = None


def _lines(model: type[BaseModel]) -> list[str]:
    schema = model.model_json_schema()
    return list(Fields(schema).lines(schema))


def test_names_and_descriptions_of_schemas_may_change_but_no_bound_may() -> None:
    assert _lines(_Part) == _lines(_Renamed)
    assert _lines(_Part) != _lines(_Wider)
