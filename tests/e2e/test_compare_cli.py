"""`penstock compare`: several providers convert the same pages, and the user sees which one to take."""

import pytest

from tests.support.cli import Cli, new_pdf
from tests.support.provider_server import Fault, ProviderServer


@pytest.mark.slow
def test_providers_are_compared_once_and_a_failing_one_stops_no_other(cli: Cli, provider: ProviderServer) -> None:
    new_pdf(cli.cwd / "pile.pdf", pages=5)
    provider.script.faults.append(Fault(status=400))
    arguments = ("compare", "pile.pdf", "--providers", "local,single,ai:vision-1,nix", "--pages", "2")
    compared = cli.run(*arguments, "--json", "-o", "compare.html")
    assert compared.code == 3, compared.err
    found = compared.json()
    assert (found["pages"], found["compared"]) == (5, [2, 4])
    local, *models, unknown = found["providers"]
    assert [page["page"] for page in local["pages"]] == [2, 4]
    assert "This is page 4" in local["pages"][1]["text"]
    assert sum(page["error"] is not None for model in models for page in model["pages"]) == 1
    assert all(page["changed"] > 0.5 for model in models for page in model["pages"] if not page["error"])
    priced = models[1]["whole_file"]
    assert priced["cost"] > 0
    assert priced["seconds"] > 0
    assert models[0]["whole_file"]["cost"] is None
    assert "there is no provider 'nix'" in unknown["error"]
    written = (cli.cwd / "compare.html").read_text()
    assert "This is page 4" in written
    assert written.count("data:image/webp") == 2

    calls = len(provider.records)
    repeated = cli.run(*arguments)
    assert "Page 2" in repeated.out
    assert "5 pages: cost" in repeated.out
    assert len(provider.records) <= calls + 1  # the failed page gets another attempt
    assert cli.run("compare", "pile.pdf", "--providers", "local", "--pages", "9-9").code == 2
