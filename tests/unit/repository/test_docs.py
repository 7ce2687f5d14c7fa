"""The documentation agrees with the code: settings, diagrams of states, and the names of code."""

import re
from enum import IntEnum, StrEnum
from functools import cache
from pathlib import Path

import pytest

from pipeline.engine.states import Machine
from pipeline.flows.documents.states import DOCUMENT, PAGE, DocumentStatus, PageStatus
from pipeline.flows.screenshots.states import BATCH, NODE, SCREENSHOT, SHARD
from pipeline.nodes.job import JOB
from tests.support import reference
from tests.support.all_settings import described

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CONFIG = "PENSTOCK_CONFIG"
"""The variable that the program reads before its settings."""
TOKENS = {"PENSTOCK_NODE_TOKEN", "PENSTOCK_PAPERLESS_TOKEN"}
"""Options of one command each, not settings."""
OF_TESTS = re.compile(r"PENSTOCK_(CORPUS|UNSEEN|FAULTS_\w+|TEST_\w+)")
"""Variables of tests and benchmarks, which the program does not read."""

_DIAGRAM = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)
_TRANSITION = re.compile(r"^\s*(\w+) --> (\w+): (\w+)$", re.MULTILINE)
_INITIAL = re.compile(r"^\s*\[\*\] --> (\w+)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r"`((?:pipeline|tasks|tests|benchmarks)/[a-z0-9_/.-]+\.(?:py|lua))(?:::([\w.]+))?`")
_REFERENCE = re.compile(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?")
CODE = sorted(file for folder in ("pipeline", "tasks", "tests") for file in (ROOT / folder).rglob("*.py"))


def unknown_variables(text: str) -> set[str]:
    """Return the `PENSTOCK_…` names in `text` without a setting."""
    known = "|".join(re.escape(name).replace("<NAME>", "(?:[A-Z0-9]+|<NAME>)") for name, _, _ in described())
    return {
        name
        for name in re.findall(r"PENSTOCK_[A-Z0-9<>_]*[A-Z0-9>](?![A-Z0-9<>]|__[…*])", text)
        if name not in {CONFIG, *TOKENS} and not OF_TESTS.fullmatch(name) and not re.fullmatch(known, name)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_only_settings_that_exist(page: Path) -> None:
    assert not unknown_variables(page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors for the headings of a page."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(page: Path, anchor: str) -> bool:
    return not page.exists() or bool(anchor and page.suffix == ".md" and anchor not in anchors(page))


def has_name(file: Path, name: str) -> bool:
    """Return whether a module defines this function, class, constant or field, or the method of `Class.method`."""
    last = name.rpartition(".")[2]
    defined = rf"^\s*(?:(?:async )?def |class ){last}\b|^\s*(?:\w+, )*{last}(?:, \w+)*(?::| =)"
    return bool(re.search(defined, file.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text(encoding="utf-8"))
    wrong = [
        f"{file}#{anchor}" for file, anchor in targets if leads_nowhere(page.parent / file if file else page, anchor)
    ]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_places_in_the_code_that_a_page_names_exist(page: Path) -> None:
    places = _PLACE.findall(page.read_text(encoding="utf-8"))
    if page.name in {"promises.md", "SECURITY.md"} or page.parent == ROOT / "docs" / "sources":
        assert any(file.startswith("tests/") and name for file, name in places)
    missing = [
        f"{file}::{name}"
        for file, name in places
        if not (ROOT / file).is_file() or (name and not has_name(ROOT / file, name))
    ]
    assert not missing


def test_the_pages_and_anchors_that_code_names_exist() -> None:
    wrong = []
    for file in CODE:
        for named in _REFERENCE.findall(text := file.read_text(encoding="utf-8")):
            page, _, anchor = named.partition("#")
            if leads_nowhere(ROOT / page, anchor):
                wrong.append(f"{file.relative_to(ROOT)}: {named}")
        wrong += [f"{file.relative_to(ROOT)}: {number}" for number in re.findall(r"\b[Ss]ource 00\d", text)]
    assert not wrong


def test_a_name_and_an_anchor_that_do_not_exist_are_noticed() -> None:
    here, glossary = Path(__file__), ROOT / "docs" / "glossary.md"
    assert [has_name(here, name) for name in ("has_name", "ROOT", "no_such_name")] == [True, True, False]
    assert [leads_nowhere(glossary, anchor) for anchor in ("", "words-we-avoid", "none-such")] == [False, False, True]


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_reference_page_equals_the_generated_text(name: str) -> None:
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == reference.PAGES[name](), "run `make reference`"


def test_a_name_that_is_no_setting_is_noticed() -> None:
    text = "PENSTOCK_NONSENSE, PENSTOCK_PROVIDERS__MINE__API_KEY, PENSTOCK_PROVIDERS__MINE__KEY, PENSTOCK_DATA_DIR."
    assert unknown_variables(text) == {"PENSTOCK_NONSENSE", "PENSTOCK_PROVIDERS__MINE__KEY"}


@pytest.mark.parametrize(
    ("machine", "initial"),
    [(DOCUMENT, DocumentStatus.PENDING), (PAGE, PageStatus.PENDING)],
    ids=["document", "page"],
)
def test_the_state_diagrams_have_exactly_the_machine_s_transitions(
    machine: Machine[IntEnum, StrEnum], initial: IntEnum
) -> None:
    diagrams = _DIAGRAM.findall((ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8"))
    own = "".join(diagram for diagram in diagrams if f"%% {machine.name}\n" in diagram)
    drawn = _TRANSITION.findall(own)
    assert len(drawn) == len(set(drawn)), "the diagram has a transition twice"
    assert set(drawn) == {(before.name, after.name, event.value) for (before, event), after in machine.legal.items()}
    assert own.count("-->") == len(drawn) + 1
    assert _INITIAL.findall(own) == [initial.name]


@pytest.mark.parametrize(
    ("page", "machine", "initial"),
    [
        *(("how-to/screenshots.md", machine, "pending") for machine in (BATCH, SHARD, SCREENSHOT, NODE)),
        ("how-to/nodes.md", JOB, "CREATED"),
    ],
    ids=lambda value: value.name if isinstance(value, Machine) else "",
)
def test_the_diagrams_of_flows_and_of_jobs_have_exactly_the_machines_transitions(
    page: str, machine: Machine[StrEnum, StrEnum], initial: str
) -> None:
    diagrams = _DIAGRAM.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    own = "".join(diagram for diagram in diagrams if f"%% {machine.name}\n" in diagram)
    drawn = _TRANSITION.findall(own)
    assert len(drawn) == len(set(drawn)), "the diagram has a transition twice"
    assert set(drawn) == {(before.value, after.value, event.value) for (before, event), after in machine.legal.items()}
    assert _INITIAL.findall(own) == [initial]


@pytest.mark.parametrize(
    ("heading", "states"), [("State of a document", DocumentStatus), ("State of a page", PageStatus)]
)
def test_the_state_tables_have_every_state_with_its_code(heading: str, states: type[IntEnum]) -> None:
    text = (ROOT / "docs/how-to/documents.md").read_text(encoding="utf-8")
    section = text.partition(f"### {heading}\n")[2].partition("\n##")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (-?\d+) \|", section, re.MULTILINE))
    assert {name: int(code) for name, code in rows.items()} == {state.name: state.value for state in states}
