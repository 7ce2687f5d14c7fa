"""A process that has read a file forks, as workers do: `python -m tests.unit.reading.sandbox.forked_reader`.

It runs in its own process: a fork of the tests' process would inherit objects of other tests, which may wait for
threads that a fork does not have.
"""

import os
import sys
from pathlib import Path

from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits
from pipeline.reading.text.text_files import read_file


def children() -> set[int]:
    """Return the ids of this process's readers."""
    return {reader.process.pid for reader in child._pool.idle}


def read(path: Path) -> str:
    return read_file(path, path.name, Limits(), lambda: True).text


def main(path: Path, expected: str) -> None:
    assert expected in read(path)
    own_children = children()
    fork = os.fork()
    if not fork:
        assert expected in read(path)
        own = children()
        assert own
        assert not own & own_children
        child.close_idle()
        os._exit(0)
    assert os.waitpid(fork, 0)[1] == 0
    assert expected in read(path)
    assert own_children & children()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
