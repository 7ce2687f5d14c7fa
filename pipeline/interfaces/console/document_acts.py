"""The actions that a document's state allows, with their questions, and the choice of models."""

from collections.abc import Collection
from dataclasses import dataclass, field

from pipeline.flows.documents.states import AT_REST, DOCUMENT, DocumentEvent, DocumentStatus
from pipeline.flows.documents.views import DocumentView
from pipeline.interfaces.console.words import plural
from pipeline.providers import registry
from pipeline.settings import LOCAL, Settings

SEPARATOR = "|"
"""Separates provider and model in a choice; neither can contain it."""


@dataclass(frozen=True)
class Act:
    """A button: its address, its label, and the question before it."""

    verb: str
    label: str
    confirm: str = ""
    css: str = ""
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A provider with one of its models, for a form."""

    value: str
    label: str


def acts(document: DocumentView) -> list[Act]:
    """Return the buttons that the state allows, the most common first, without those for retries."""
    name, status = document.filename, document.status
    unfinished = document.pages - document.completed_count - document.failed_count
    actions = []
    if status is DocumentStatus.PAUSED:
        actions.append(Act("resume", "Resume", css="primary"))
    if (status, DocumentEvent.PAUSE) in DOCUMENT.legal:
        actions.append(Act("pause", "Pause"))
    if status in AT_REST and document.completed_count and not document.pages - document.completed_count:
        actions.append(Act("remerge", "Merge again"))
    elif status in AT_REST and document.completed_count:
        gaps = plural(document.pages - document.completed_count, "page")
        question = f"Merge {name} without {gaps}? The result marks the gaps; you can convert those pages later."
        actions.append(Act("remerge", f"Merge without {gaps}", question, fields={"allow_partial": "true"}))
    if status not in AT_REST:
        rest = f"{plural(unfinished, 'page')} will not be converted" if document.pages else "No page is converted"
        and_kept = (
            f", {plural(document.completed_count, 'converted page')} are kept" if document.completed_count else ""
        )
        actions.append(Act("cancel", "Cancel", f"Cancel {name} permanently? {rest}{and_kept}.", "danger"))
    its_pages = f"Its {plural(document.pages, 'page')}" if document.pages else "Its pages"
    question = (
        f"Delete {name}? {its_pages}, all their attempts, its results and the stored file are deleted permanently."
    )
    return [*actions, Act("delete", "Delete", question, "danger")]


def can_retry(document: DocumentView) -> bool:
    """Return whether the whole document can be converted again."""
    return (document.status, DocumentEvent.RETRY) in DOCUMENT.legal


def can_retry_pages(document: DocumentView) -> bool:
    """Return whether its state lets single pages be converted again."""
    return (document.status, DocumentEvent.RETRY_PAGES) in DOCUMENT.legal and document.pages > 0


def choices(settings: Settings) -> list[Choice]:
    """Return every configured provider with every model that its configuration names; the local one and inference nodes
    once, without a model."""
    options = []
    for name in registry.names(settings):
        if name == LOCAL:
            options.append(Choice(f"{LOCAL}{SEPARATOR}", f"{LOCAL}: this machine, at no cost"))
            continue
        profile = settings.providers[name]
        if profile.kind == "nodes":
            options.append(Choice(f"{name}{SEPARATOR}", f"{name}: inference nodes"))
            continue
        models = dict.fromkeys([profile.model, *sorted(profile.prices)])
        options += [
            Choice(f"{name}{SEPARATOR}{'' if model == profile.model else model}", f"{name}: {model}")
            for model in models
            if model not in {"", "*"}
        ]
    return options


def chosen(value: str, model: str, known: Collection[Choice]) -> tuple[str, str]:
    """Return (provider, model) from a form. `value`: a choice's value, or empty; `model`: replaces the choice's model
    unless empty. An empty result: no change.

    Raises `ValueError` for a choice that is not `known`.
    """
    if value and value not in {choice.value for choice in known}:
        raise ValueError("choose a configured provider")
    provider, _, named = value.partition(SEPARATOR)
    return provider, model or named
