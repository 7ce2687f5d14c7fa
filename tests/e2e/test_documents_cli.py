"""`penstock documents …`: views of documents and actions on them, with good and bad ids."""

import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.cli import Cli, Running, new_pdf
from tests.support.provider_server import Fault, ProviderServer
from tests.support.samples import picture_of
from tests.support.waiting import wait_until


def convert(cli: Cli, *arguments: str, pages: int = 2, code: int = 0) -> str:
    """Convert a new file; return the id of its document."""
    source = new_pdf(cli.cwd / f"{uuid4().hex[:6]}.pdf", pages)
    result = cli.run("convert", "--json", source, *arguments)
    assert result.code == code, result.err
    return str(result.documents()[0]["id"])


def wait_for(cli: Cli, document_id: str, wanted: str) -> None:
    wait_until(lambda: cli.status(document_id) == wanted, 60, wanted, last=lambda: cli.status(document_id))


def start_convert(cli: Cli, provider: ProviderServer) -> tuple[Running, str]:
    """Start a `convert` of 30 pages, one call at a time; return it and the id of its document."""
    provider.configure({"latency_s": 0.7})
    new_pdf(cli.cwd / "report.pdf", pages=30)
    running = cli.start("convert", "report.pdf", "--provider", "single")
    assert provider.wait_for_calls(2, 90)
    return running, cli.newest()


def test_the_views_of_a_document_show_its_pages_and_texts(cli: Cli) -> None:
    document = convert(cli)
    listed, failed, shown, pages, none_failed, attempts, texts, table, text = cli.run_all(
        ["documents", *arguments]
        for arguments in (
            ["list"],
            ["list", "--status", "failed", "--json"],
            ["show", document[:9]],
            ["pages", document],
            ["pages", document, "--failed"],
            ["attempts", document, "2", "--json"],
            ["attempts", document, "2", "--text"],
            ["attempts", document],
            ["text", document],
        )
    )
    row = next(row for row in listed.out.splitlines() if row.startswith(document))
    assert row.split()[2:8] == ["COMPLETED", "2/2", str(cli.cwd), "100", "%", "local"]
    assert document not in [failed_row["id"] for failed_row in failed.json()]
    assert (shown.code, shown.out.splitlines()[0].split()) == (0, ["id", document])
    assert [line.split()[:3] for line in pages.out.splitlines()[1:]] == [
        ["1", "1", "COMPLETED"],
        ["2", "2", "COMPLETED"],
    ]
    assert "No page has failed." in none_failed.err
    assert [(attempt["page"], attempt["status"]) for attempt in attempts.json()] == [(2, "completed")]
    assert "This is page 2" in texts.out
    assert "completed" in table.out
    assert "This is page 1" in text.out


def test_pages_are_searched_by_their_words(cli: Cli) -> None:
    document = convert(cli)

    def hits() -> Any:
        return cli.run("documents", "search", "page", "2", "--document", document[:9], "--json").json()["hits"]

    # Indexing follows a moment after completion.
    wait_until(hits, 60, "its text is indexed")
    ((page, shown),) = [(hit["page_source"], hit["passage"]) for hit in hits()]
    assert (page, "This is page 2" in shown) == (2, True)


def test_export_follows_the_rules_of_convert(cli: Cli, tmp_path: Path) -> None:
    document = convert(cli, "-o", "other-place.md")
    assert cli.run("documents", "export", document, "text.md").code == 0
    assert (tmp_path / "text.md").read_text() == (tmp_path / "other-place.md").read_text()
    assert (tmp_path / "text.manifest.json").is_file()
    (tmp_path / "text.md").write_text("mine")
    refused = cli.run("documents", "export", document, "text.md")
    assert (refused.code, (tmp_path / "text.md").read_text()) == (1, "mine")
    assert "use --force" in refused.err
    assert cli.run("documents", "export", document, "text.md", "--force").code == 0
    (tmp_path / "folder").mkdir()
    assert cli.run("documents", "export", document, "-o", "folder").code == 0
    assert cli.run("documents", "export", document, "-o", "new/").code == 0
    assert len(list((tmp_path / "folder").glob("*.md"))) == len(list((tmp_path / "new").glob("*.md"))) == 1
    shown = cli.run("documents", "export", document[:9], "-o", "-")
    assert shown.out == (tmp_path / "other-place.md").read_text()
    assert cli.run("documents", "export", document, "text.md", "-o", "other.md").code == 2
    assert cli.run("documents", "export", document, "/proc/no/such/place.md").err.startswith("penstock: /proc/no")


def test_paused_document_continues_after_resume(cli: Cli, provider: ProviderServer) -> None:
    running, document = start_convert(cli, provider)
    paused = cli.run("documents", "pause", document)
    assert "paused. Now PAUSED" in paused.err
    assert running.wait() == 1
    assert f"`penstock documents resume {document}` continues" in running.output
    assert cli.run("documents", "pause", document).code == 0, "harmless"
    provider.configure({"latency_s": 0})
    assert cli.run("documents", "resume", document, "--wait").code == 0
    assert cli.status(document) == "COMPLETED"
    assert len(provider.records) == 30
    assert "is not paused: it is COMPLETED" in cli.run("documents", "resume", document).err


def test_cancelled_document_stops_and_can_be_retried(cli: Cli, provider: ProviderServer) -> None:
    running, document = start_convert(cli, provider)
    assert cli.run("documents", "cancel", document).code == 0
    assert running.wait() == 1
    assert "cancelled" in running.output
    assert not (cli.cwd / "report.md").exists()
    assert provider.wait_for(lambda: not provider._under_way)
    assert len(provider.records) < 30
    provider.configure({"latency_s": 0})
    assert cli.run("documents", "retry", document).code == 0
    wait_for(cli, document, "COMPLETED")
    before = cli.run("documents", "text", document).out
    provider.configure({"latency_s": 0.7})
    assert cli.run("documents", "retry", document, "--fresh").code == 0
    assert cli.run("documents", "cancel", document).code == 0
    text, shown = cli.run_all([["documents", "text", document], ["documents", "show", document]])
    assert (text.out, "before the last retry, which is CANCELLED" in text.err) == (before, True)
    assert "result" in shown.out


def test_failed_pages_can_be_retried_with_another_model(cli: Cli, provider: ProviderServer) -> None:
    provider.push(Fault(status=400), Fault(status=400))
    document = convert(cli, "--provider", "ai", pages=4, code=3)
    pages = cli.run("documents", "pages", document, "--failed", "--json").json()
    assert len(pages) == 2
    assert all("400" in page["error"] or "Scripted" in page["error"] for page in pages)
    assert "FAILED" in cli.run("documents", "pages", document, "--failed").out

    merged = cli.run("documents", "remerge", document)
    assert (merged.code, "merge with --allow-partial" in merged.err) == (1, True)
    gaps = cli.run("documents", "remerge", document, "--allow-partial", "--wait")
    assert (gaps.code, "PARTIAL_FAILED" in gaps.err.splitlines()[-1]) == (3, True)
    assert "is missing" in cli.run("documents", "text", document).out

    retried = cli.run("documents", "retry", document, "--failed", "--model", "vision-2", "--wait")
    assert (retried.code, "failed pages will be converted again" in retried.err) == (0, True)
    assert "COMPLETED" in retried.err.splitlines()[-1]
    assert cli.status(document) == "COMPLETED"
    assert sorted(record.model for record in provider.records) == ["vision-1"] * 4 + ["vision-2"] * 2


def test_page_can_be_retried_and_an_older_text_promoted(cli: Cli, provider: ProviderServer) -> None:
    document = convert(cli, "--provider", "ai", pages=2)
    provider.push(Fault(status=200, text="# Second thoughts"))
    assert cli.run("documents", "retry-page", document, "2", "--wait").code == 0
    assert "Second thoughts" in cli.run("documents", "text", document).out
    first = cli.run("documents", "attempts", document, "2", "--json").json()[0]
    assert cli.run("documents", "promote", document, "2", str(first["id"]), "--wait").code == 0
    assert "Second thoughts" not in cli.run("documents", "text", document).out


def test_every_view_shows_the_cost(cli: Cli, provider: ProviderServer) -> None:
    provider.push(Fault(status=400))
    document = convert(cli, "--provider", "ai", "--allow-partial", pages=3, code=3)
    cli.run("documents", "retry", document, "--failed")
    wait_for(cli, document, "COMPLETED")
    shown, table, attempts, listed, status, stats, text = cli.run_all(
        [
            ["documents", "show", document, "--json"],
            ["documents", "attempts", document],
            ["documents", "attempts", document, "--json"],
            ["documents", "list", "--json", "--limit", "100"],
            ["status", "--json"],
            ["calls", "stats", "--by", "scope", "--provider", "ai", "--json"],
            ["documents", "show", document],
        ]
    )
    cost = shown.json()["cost"]
    assert cost > 0
    assert shown.json()["costs"][0] | {"cost": cost} == {
        "provider": "ai",
        "model": "vision-1",
        "attempts": 4,
        "cached": 0,
        "cost": cost,
        "input_tokens": shown.json()["costs"][0]["input_tokens"],
        "output_tokens": shown.json()["costs"][0]["output_tokens"],
    }
    assert "COST" in table.out
    assert round(sum(attempt["cost"] for attempt in attempts.json()), 9) == round(cost, 9)
    assert "COST" in cli.run("documents").out
    assert next(attempt["cost"] for attempt in listed.json() if attempt["id"] == document) == cost
    today = next(attempt for attempt in status.json()["spending"] if attempt["provider"] == "ai")
    assert today["today"] >= cost
    [of_document] = [attempt for attempt in stats.json()["groups"] if attempt["group"] == document]
    assert of_document["cost"] == round(cost, 6)
    assert re.search(r"^cost +0\.0\d+ \(ai vision-1: 0\.0\d+ for [\d,]+\+[\d,]+ tokens\)$", text.out, re.MULTILINE)
    manifest = json.loads(next(cli.data_dir.glob(f"output/{document}/*.manifest.json")).read_text())
    assert manifest["totals"]["cost"] == round(cost, 9)


def test_every_view_marks_a_picture_that_recognition_cannot_read_as_doubtful(cli: Cli) -> None:
    # Recognition does not know this script.
    picture_of(["Съешь ещё этих мягких", "Широкая электрификация"]).save(cli.cwd / "scan.png")
    result = cli.run("convert", "scan.png")
    document = cli.newest()
    assert f"(1 page), 1 doubtful (`penstock documents pages {document} --doubtful`)" in result.err
    pages, listed, shown = cli.run_all(
        ["documents", *arguments] for arguments in (["pages", document, "--doubtful"], ["list"], ["show", document])
    )
    assert "% doubtful" in pages.out
    assert "1/1, 1 doubtful" in next(row for row in listed.out.splitlines() if row.startswith(document))
    assert f"1 of 1; `penstock documents pages {document} --doubtful` lists them" in shown.out


def test_a_doubtful_page_goes_to_a_model_within_a_budget(cli: Cli, provider: ProviderServer) -> None:
    picture_of(["Съешь ещё этих мягких", "французских булок"]).save(cli.cwd / "scan.png")
    convert_it = ["convert", "scan.png", "--escalate", "ai", "--budget"]
    poor = cli.run(*convert_it, "0.01")
    document = cli.newest()
    assert "1 doubtful" in poor.err
    more = f"budget spent before 1 page: `penstock documents escalate {document} --budget 2.00` sends more"
    assert more in poor.err
    assert provider.records == []

    rich = cli.run(*convert_it, "2.00")
    assert (rich.code, len(provider.records)) == (0, 1), rich.err
    assert re.search(r"1 of 1 page went to ai \(0\.\d+\)$", rich.err.rstrip())
    assert "The picture has" in (cli.cwd / "scan.png.md").read_text()
    page = json.loads((cli.cwd / "scan.png.manifest.json").read_text())["pages"][0]
    assert (page["provider"], page["escalation"]["state"], page["doubtful"]) == ("ai", "replaced", False)
    assert page["escalation"]["cost"] == sum(attempt["cost"] for attempt in page["attempts"]) > 0
    assert [attempt["provider"] for attempt in page["attempts"]] == ["local", "ai"]
    shown, pages = cli.run_all([["documents", "show", document], ["documents", "pages", document]])
    assert re.search(r"^escalation +to ai, budget 2\.00; 1 of 1 page went to ai", shown.out, re.MULTILINE)
    assert "ai, recognition is" in pages.out
    nothing = cli.run("documents", "escalate", document, "--wait")
    assert nothing.code == 0
    assert "0 pages sent to ai, without a limit of cost" in nothing.err
    assert "went to" not in nothing.err, "that was an earlier request"
    assert len(provider.records) == 1


def test_delete_asks_first_and_removes_everything(cli: Cli) -> None:
    document = convert(cli)
    prompted = cli.run("documents", "delete", document, stdin="n\n")
    assert (prompted.code, cli.status(document)) == (1, "COMPLETED")
    assert "[y/N]" in prompted.err
    deleted = cli.run("documents", "delete", document, document[:8], "--yes")
    assert (deleted.code, deleted.err.count("\n"), ": deleted" in deleted.err) == (0, 1, True), "no log lines"
    assert cli.run("documents", "show", document).code == 1
    remaining = [path for path in cli.data_dir.rglob("*") if document in str(path)]
    assert not remaining
    assert list(cli.cwd.glob("*.md")), "files that the user wrote elsewhere stay"


BAD = "0000000000000000"


def test_unknown_id_is_refused_by_every_command(cli: Cli) -> None:
    commands = [["show", BAD], ["retry", BAD], ["delete", BAD, "--yes"], ["text", "%"], ["export", BAD, "x.md"]]
    for command, result in zip(commands, cli.run_all(["documents", *command] for command in commands), strict=True):
        assert (result.code, result.out) == (1, "")
        assert result.err == f"penstock: there is no document {command[1]}; see `penstock documents list`\n"


def test_an_illegal_command_is_refused_with_its_reason(cli: Cli) -> None:
    document = convert(cli)
    refused = {
        ("retry-page", document, "99"): "has no page 99",
        ("promote", document, "1", "999999"): "has no attempt 999999 with a text",
        ("retry", document, "--provider", "nobody"): "there is no provider 'nobody'",
        ("pause", document): "a document that is COMPLETED cannot pause",
    }
    results = cli.run_all(["documents", *command] for command in refused)
    for result, reason in zip(results, refused.values(), strict=True):
        assert (result.code, reason in result.err) == (2 if "provider" in reason else 1, True), result.err
    none = cli.run("documents", "retry", document, "--failed")
    assert (none.code, "no page has failed, nothing to do. Now COMPLETED" in none.err) == (0, True)
    assert cli.status(document) == "COMPLETED"


def test_wrong_usage_exits_with_2(cli: Cli) -> None:
    wrong = [["show"], ["nonsense"], ["list", "--status", "WRONG"], ["list", "--limit", "0"], ["retry-page", "x"]]
    assert [result.code for result in cli.run_all(["documents", *command] for command in wrong)] == [2] * len(wrong)


def test_commands_need_no_running_stack(alone: Cli) -> None:
    assert "No documents." in alone.run("documents", "list").err
    new_pdf(alone.cwd / "report.pdf")
    submit = "from tasks.documents import submit; submit('report.pdf')"
    assert alone.python(submit).code == 0
    assert alone.run("status", "--json").json()["documents"] == {"PENDING": 1}
    assert alone.run("convert", "report.pdf").code == 0
    alone.wait_until_gone()
    document = alone.newest()
    text, retried = alone.run("documents", "text", document), alone.run("documents", "retry", document)
    assert "This is page 1" in text.out
    assert "No stack is running: `penstock up` starts one and continues the work." in retried.err
    assert alone.run("status", "--json").json()["documents"] == {"PENDING": 1}
    assert alone.run("documents", "cancel", document).code == 0
    waited = alone.run("documents", "retry", document, "--wait")
    assert (waited.code, alone.status(document)) == (0, "COMPLETED"), waited.err
