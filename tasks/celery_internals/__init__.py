"""Penstock's patches of private parts of Celery and kombu, by module: messages, broker, results, consumer.

A minor version may rename these parts. With an untested version, a process ends at its start and names both versions;
otherwise it would lose the order of a queue or a lane of a chord later.
"""

import celery
import kombu

TESTED = {"Celery": (celery, (5, 7)), "kombu": (kombu, (5, 7))}


def check_versions() -> None:
    """Raise `ImportError` unless Celery and kombu have the versions that `TESTED` names."""
    for name, (library, tested) in TESTED.items():
        installed = tuple(library.VERSION[:2])
        if installed != tested:
            message = f"Penstock changes private parts of {name} {tested[0]}.{tested[1]}; this is {library.__version__}"
            raise ImportError(f"{message}: install `{name.lower()}~={tested[0]}.{tested[1]}.0`")


check_versions()
