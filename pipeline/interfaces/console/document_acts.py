"""What can be done with a document in its state, in words that say what is touched; and with which models."""

from collections.abc import Collection
from dataclasses import dataclass, field

from pipeline.flows.documents.states import AT_REST, DOCUMENT, DocumentEvent, DocumentStatus
from pipeline.flows.documents.views import DocumentView
from pipeline.interfaces.console.words import plural
from pipeline.providers import registry
from pipeline.settings import LOCAL, Settings

SEPARATOR = "|"
"""Between provider and model in a choice; neither can have it."""


@dataclass(frozen=True)
class Act:
    """A button: where it posts to, what it says, and what it asks before."""

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
    """What can be done now, the most usual first."""
    name, status = document.filename, document.status
    left = document.pages - document.completed_count - document.failed_count
    found = []
    if status is DocumentStatus.PAUSED:
        found.append(Act("resume", "Resume", css="primary"))
    if (status, DocumentEvent.PAUSE) in DOCUMENT.legal:
        found.append(Act("pause", "Pause"))
    if status in AT_REST and document.completed_count and not document.pages - document.completed_count:
        found.append(Act("remerge", "Merge again"))
    elif status in AT_REST and document.completed_count:
        gaps = plural(document.pages - document.completed_count, "page")
        asks = f"Merge {name} without {gaps}? The result marks the gaps; those pages can be converted later."
        found.append(Act("remerge", f"Merge without {gaps}", asks, fields={"allow_partial": "true"}))
    if status not in AT_REST:
        rest = f"{plural(left, 'page')} not converted yet stay so" if document.pages else "Nothing of it is converted"
        kept = f", {plural(document.completed_count, 'converted page')} are kept" if document.completed_count else ""
        found.append(Act("cancel", "Cancel", f"Cancel {name} for good? {rest}{kept}.", "danger"))
    what = f"Its {plural(document.pages, 'page')}" if document.pages else "Its pages"
    asks = f"Delete {name}? {what}, all their attempts, its results and the stored file go for good."
    return [*found, Act("delete", "Delete", asks, "danger")]


def can_retry(document: DocumentView) -> bool:
    """Whether all of it can be converted again."""
    return (document.status, DocumentEvent.RETRY) in DOCUMENT.legal


def can_retry_pages(document: DocumentView) -> bool:
    """Whether some of its pages can be converted again."""
    return (document.status, DocumentEvent.RETRY_PAGES) in DOCUMENT.legal and document.pages > 0


def choices(settings: Settings) -> list[Choice]:
    """Every configured provider with every model that its configuration names."""
    found = []
    for name in registry.names(settings):
        if name == LOCAL:
            found.append(Choice(f"{LOCAL}{SEPARATOR}", f"{LOCAL}: this machine, at no cost"))
            continue
        profile = settings.providers[name]
        if profile.kind == "nodes":
            found.append(Choice(f"{name}{SEPARATOR}", f"{name}: inference nodes"))
            continue
        models = dict.fromkeys([profile.model, *sorted(profile.prices)])
        found += [
            Choice(f"{name}{SEPARATOR}{'' if model == profile.model else model}", f"{name}: {model}")
            for model in models
            if model not in {"", "*"}
        ]
    return found


def chosen(value: str, model: str, known: Collection[Choice]) -> tuple[str, str]:
    """(provider, model) of a form's choice, where `model` wins; empty for no change. Raises `ValueError`."""
    if value and value not in {choice.value for choice in known}:
        raise ValueError("this is none of the providers that are configured")
    provider, _, named = value.partition(SEPARATOR)
    return provider, model or named
