"""`penstock console`: the console in a browser."""

import time
from typing import Annotated

import typer

_READY_S = 30.0


def console(
    address_only: Annotated[
        bool, typer.Option("--address", help="Print the console's address on standard output, and open nothing.")
    ] = False,
) -> None:
    """Open the console in a browser: see documents, screenshots, queues and all other work, and act on it.

    Where no stack runs yet, this first runs one, like `penstock up`, until Ctrl-C.

    Beyond this machine, or with PENSTOCK_API__REQUIRE_KEY, it asks for a key (`penstock keys create NAME`).
    """
    import webbrowser
    from threading import Thread

    from pipeline.interfaces.cli.command import all_settings
    from pipeline.interfaces.cli.output import err, print_text
    from pipeline.interfaces.cli.stack import run_up
    from pipeline.standalone.address import address_in_use, api_address

    settings = all_settings()
    running = address_in_use(settings, "api")
    address = f"{running or api_address(settings.api)}/console/"

    def open_it() -> None:
        if not webbrowser.open(address):
            err.print(f"No browser opened here: go to {address}", soft_wrap=True)

    def open_when_it_answers() -> None:
        until = time.monotonic() + _READY_S
        while not address_in_use(settings, "api") and time.monotonic() < until:
            time.sleep(0.1)
        open_it()

    if address_only:
        print_text(f"{address}\n")
    elif running:
        err.print(f"Console: {address}", soft_wrap=True)
        open_it()
    else:
        run_up(api=True, when_ready=Thread(target=open_when_it_answers, daemon=True).start)
