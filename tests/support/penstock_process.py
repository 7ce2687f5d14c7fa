"""The command line as a module, for `Stack.run`: `python -m tests.support.penstock_process node …`."""

from pipeline.interfaces.cli.main import main

if __name__ == "__main__":
    main()
