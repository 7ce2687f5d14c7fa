"""The locks have the versions of constraints.txt, with a known hash for each file."""

import re
import tomllib

from tests.unit.repository.test_docs import ROOT

LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-uv.lock")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).casefold()


def pins(text: str) -> dict[str, str]:
    """Return versions by the packages' names."""
    return {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.!+]+)", text, re.MULTILINE)}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_constraints_are_names_and_versions_only() -> None:
    lines = text_of("constraints.txt").splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line)] == []
    assert len(lines) == len({canonical(line.partition("==")[0]) for line in lines})


def test_the_locks_hold_each_constraint_once() -> None:
    locked = [pins(text_of(name)) for name in LOCKS]
    assert sum(map(len, locked)) == len(locked[0] | locked[1] | locked[2])
    assert locked[0] | locked[1] | locked[2] == pins(text_of("constraints.txt")), "renew them: make lock"


def test_each_locked_package_has_hashes_and_comes_from_no_place_of_its_own() -> None:
    for name in LOCKS:
        text = text_of(name)
        entry = r"[A-Za-z0-9._-]+==[\w.!+]+(?: ; [^\\\n]+)? \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
        assert re.fullmatch(f"(?:{entry})+", text), name


def test_the_locks_have_all_requirements_of_the_project() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]

    def names(requirements: list[str]) -> set[str]:
        matches = {re.match(r"[\w.-]+", requirement) for requirement in requirements}
        return {canonical(match[0]) for match in matches if match} - {"penstock"}

    extras = project["optional-dependencies"]
    assert names(project["dependencies"] + extras["embedded"]) <= pins(text_of(LOCKS[0])).keys()
    locked = pins(text_of(LOCKS[0])).keys() | pins(text_of(LOCKS[1])).keys()
    assert names([requirement for extra in extras.values() for requirement in extra]) <= locked
    assert "mutagen" not in pins(text_of(LOCKS[0])), "its licence is the GPL, so it must be optional"


def test_build_requirements_are_locked_too() -> None:
    build = tomllib.loads(text_of("pyproject.toml"))["build-system"]["requires"]
    assert {canonical(re.split(r"[<>=]", requirement)[0]) for requirement in build} <= pins(text_of(LOCKS[0])).keys()
