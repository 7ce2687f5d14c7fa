"""`penstock documents show`, `pages` and `attempts`: the details of one document."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.views import money, plain
from pipeline.interfaces.cli.command import Json
from pipeline.interfaces.cli.convert.job import escalation
from pipeline.interfaces.cli.documents.document import Id, resolved
from pipeline.interfaces.cli.output import one_line, print_json, print_list, print_pairs, print_text, state

if TYPE_CHECKING:
    from pipeline.flows.documents.views import AttemptView, CostView, PageView
    from pipeline.operations.documents import Document


def show(document_id: Id, as_json: Json = False) -> None:
    """Show everything about a document."""
    from pipeline.operations.documents import costs, reasons, status

    document = status(resolved(document_id))
    paid, why = costs(document.id), reasons([document]).get(document.id)
    if as_json:
        print_json({**plain(document), "costs": plain(paid), "reason": plain(why)})
        return
    shown = {name: value for name, value in plain(document).items() if value not in (None, "")}
    shown |= {name: value[:19].replace("T", " ") + " UTC" for name, value in shown.items() if name.endswith("_at")}
    shown.pop("doubtful_count")
    if why and why.words and why.words != document.error:
        shown["why"] = why.words + (
            f", until {plain(why.until)[:19]} UTC" if why.until and why.kind != "paused" else ""
        )
    if shown.pop("outdated"):
        shown["result"] = "from before the last retry; a new result replaces it"
    elif document.doubtful_count:
        count = f"{document.doubtful_count:,} of {document.pages:,}"
        shown["doubtful pages"] = f"{count}; `penstock documents pages {document.id} --doubtful` lists them"
    for name in ("escalate", "budget", "escalated_pages", "escalated_cost", "unpaid_pages"):
        shown.pop(name, None)
    if document.escalate:
        to = f"to {document.escalate}" + (f", budget {document.budget}" if document.budget else "")
        shown["escalation"] = f"{to}; {escalation(document) or 'no page went there'}"
    shown["cost"] = _cost(document, paid)
    print_pairs(
        [
            (name.replace("_", " "), state(value) if name == "status" else one_line(str(value)))
            for name, value in shown.items()
        ]
    )


def _cost(document: "Document", paid: list["CostView"]) -> str:
    """A document's cost, with its providers, or the reason for 0."""
    services = [cost for cost in paid if cost.cost]
    costs = ", ".join(
        f"{cost.provider} {cost.model}: {money(cost.cost)} for {cost.input_tokens:,}+{cost.output_tokens:,} tokens"
        for cost in services
    )
    if document.cost:
        return f"{money(document.cost)} ({costs})" if costs else money(document.cost)
    unpriced_providers = sorted(
        {cost.provider for cost in paid if cost.attempts > cost.cached and cost.input_tokens + cost.output_tokens}
    )
    unpriced = ", ".join(f"PENSTOCK_PROVIDERS__{name.upper()}__PRICES" for name in unpriced_providers)
    return f"0: no price is set for its models ({unpriced})" if unpriced_providers else "0"


def pages(
    document_id: Id,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed pages, with the reasons.")] = False,
    doubtful: Annotated[bool, typer.Option("--doubtful", help="Only pages with doubtful recognition.")] = False,
    as_json: Json = False,
) -> None:
    """List a document's pages: state, attempts, error, length of the text, certainty of recognition."""
    from pipeline.flows.documents.states import PageStatus
    from pipeline.operations.documents import pages as find

    def row(page: "PageView") -> list[str]:
        return [
            str(page.page),
            str(page.page_source),
            state(page.status.name),
            str(page.attempts),
            str(len(page.content)),
            _certainty(page),
            one_line(f"{page.provider} {page.model}"),
            one_line(_escalation(page)),
            one_line(page.error or (page.fallback and f"converted here: {page.fallback}")),
        ]

    print_list(
        find(resolved(document_id), status=PageStatus.FAILED if failed else None, doubtful=doubtful),
        ("PAGE>", "IN FILE>?", "STATE", "ATTEMPTS>?", "CHARACTERS>?", "SURE?", "PROVIDER?", "ESCALATION?", "ERROR"),
        row,
        as_json=as_json,
        none="No page has failed."
        if failed
        else "No page is doubtful."
        if doubtful
        else "The document has no pages yet.",
    )


def _escalation(page: "PageView") -> str:
    """Where the page went, why, and what came of it; empty if it stayed."""
    if (escalated := page.escalation) is None:
        return ""
    cost = f" ({money(escalated.cost)})" if escalated.cost else ""
    why = f": {escalated.outcome}" if escalated.outcome else ""
    return f"{escalated.provider}, {escalated.reason}; {escalated.state}{cost}{why}"


def _certainty(page: "PageView") -> str:
    """The certainty of text recognition, if known, and whether it is doubtful."""
    share = "" if page.confidence is None else f"{page.confidence:.0%}"
    return f"[yellow]{f'{share} doubtful'.strip()}[/yellow]" if page.doubtful else share


def attempts(
    document_id: Id,
    page: Annotated[int | None, typer.Argument(help="One page; default: all.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Show the texts instead.")] = False,
    as_json: Json = False,
) -> None:
    """List every attempt of a document's pages: model, tokens, time, cost, outcome."""
    from pipeline.operations.documents import attempts as find

    def row(attempt: "AttemptView") -> list[str]:
        ended = attempt.status + (" (cache)" if attempt.cached else "") + ("" if attempt.effective else " (discarded)")
        model = "" if attempt.model == attempt.provider else attempt.model
        return [
            str(attempt.id),
            str(attempt.page),
            ended,
            one_line(f"{attempt.provider} {model}".strip()),
            str(attempt.input_tokens),
            str(attempt.output_tokens),
            str(attempt.latency_ms),
            money(attempt.cost) if attempt.cost else "",
            one_line(attempt.error),
        ]

    listed = find(resolved(document_id), page)
    if text and listed and not as_json:
        for attempt in listed:
            print_text(f"<!-- attempt {attempt.id}, page {attempt.page}: {attempt.status} -->\n\n{attempt.text}\n\n")
        return
    print_list(
        listed,
        ("ATTEMPT>", "PAGE>", "ENDED", "MODEL?", "TOKENS IN>?", "OUT>?", "MS>?", "COST>?", "ERROR"),
        row,
        as_json=as_json,
        none="No attempts" + (f" of page {page}." if page else "."),
    )
