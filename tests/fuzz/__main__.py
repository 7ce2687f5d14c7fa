"""`make fuzz`: every target in turn until the time is over, by Hypothesis and, where it is installed, by Atheris.

    python -m tests.fuzz --seconds 3600 [TARGET …]
    python -m tests.fuzz --replay FILE TARGET

Each turn is a process of its own, since native code that fails takes the process along. What fails is kept below
`.fuzz/`, one input for each place. Copy it to `tests/fuzz/corpus/TARGET/` once the fault is mended.
"""

import argparse
import hashlib
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.target import Target

OUT = Path(".fuzz")
_MEMORY_MB = 3_000
_ONE_INPUT_S = 20
_SLOW_S = 5
_MAX_BYTES = 20_000
_FORMS = ("shapes", "bytes")


def main() -> int:
    arguments = _arguments()
    targets = _targets()
    if arguments.replay:
        targets[arguments.targets[0]](arguments.replay.read_bytes())
        print("passes")
        return 0
    names = arguments.targets or list(targets)
    started = time.monotonic()
    known: set[Path] = set()
    for number, (name, form) in enumerate(_turns(names)):
        remaining_s = arguments.seconds - (time.monotonic() - started)
        # Short turns first, so that each target has one.
        share = min(remaining_s, 8.0 if number < 2 * len(names) else 30.0)
        if share < 1:
            break
        report = _turn(targets[name], form, int(share) + 1)
        print(f"{name} ({form}): {report}", flush=True)
        for path in sorted(set(_kept(name)) - known):
            known.add(path)
            print(f"  {path}\n  {_why(path)}", flush=True)
    print(f"{len(known)} failures")
    return 1 if known else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--replay", type=Path, metavar="FILE")
    return parser.parse_args()


def _targets() -> "dict[str, Target]":
    if find_spec("atheris"):
        import atheris

        instrumented = atheris.instrument_imports(include=["pipeline"])
    else:
        instrumented = nullcontext()
    with instrumented:
        targets: dict[str, Target] = importlib.import_module("tests.fuzz.targets").TARGETS
        return targets


def _turns(names: list[str]) -> Iterator[tuple[str, str]]:
    """Each target by the strategy that knows its shape, and by its bytes, over and over."""
    return ((name, form) for form in cycle(_FORMS if find_spec("atheris") else _FORMS[:1]) for name in names)


def _turn(target: "Target", form: str, seconds: int) -> str:
    """What a process says that fuzzes the target for so long."""
    folder = OUT / target.name
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    sys.stdout.flush()
    sys.stderr.flush()
    process = multiprocessing.get_context("fork").Process(target=_fuzz, args=(target, form, folder, seconds, log))
    process.start()
    process.join(seconds + 3 * _ONE_INPUT_S)
    if process.is_alive():
        process.kill()
        process.join()
    lines = log.read_text("utf-8", "replace").splitlines()
    reports = [line for line in lines if "exec/s" in line or line.startswith("tried")]
    report = reports[-1].strip() if reports else "no report"
    return f"{report}, ended with {process.exitcode}" if process.exitcode else report


def _kept(name: str) -> list[Path]:
    return [path for path in (OUT / name).glob("*-*") if path.suffix != ".why"]


def _why(path: Path) -> str:
    why = path.with_suffix(".why")
    return why.read_text() if why.exists() else "it took the process along, too long, or too much memory"


def _fuzz(target: "Target", form: str, folder: Path, seconds: int, log: Path) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["PENSTOCK_LOG_LEVEL"] = "CRITICAL"
    (_by_bytes if form == "bytes" else _by_shapes)(target, folder, seconds)


def _by_shapes(target: "Target", folder: Path, seconds: int) -> None:
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from tests.fuzz.mutation import mutants

    resource.setrlimit(resource.RLIMIT_AS, (3 * _MEMORY_MB * 2**20, resource.RLIM_INFINITY))
    ends, tried = time.monotonic() + seconds, 0

    def run(data: bytes) -> None:
        nonlocal tried
        if time.monotonic() < ends:
            tried += 1
            _watched(target, data, folder)

    while time.monotonic() < ends:
        # In portions, so that the time is kept; without shrinking, which takes longer than finding.
        portion = settings(
            max_examples=20 if target.slow else 500,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(mutants(target))(run))
        seed(time.monotonic_ns())(portion)()
    print(f"tried {tried}", flush=True)


def _watched(target: "Target", data: bytes, folder: Path) -> None:
    """Run it, and keep the input if it fails at a place that is new, takes long, or takes the process along."""
    input_file = folder / f"lost-{hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]}"
    input_file.write_bytes(data)
    signal.alarm(_ONE_INPUT_S)
    started = time.monotonic()
    try:
        target(data)
        took = time.monotonic() - started
        failed, why = ("slow-1", f"took {took:.0f} s") if took > _SLOW_S else ("", "")
    except Exception as error:  # noqa: BLE001  # every exception is a finding
        failed, why = _place(error), "".join(traceback.format_exception(error, limit=-4))
    signal.alarm(0)
    if failed and not (to := folder / failed).exists():
        input_file.rename(to)
        to.with_suffix(".why").write_text(why[-1500:], "utf-8", "replace")
    else:
        input_file.unlink()


def _place(error: Exception) -> str:
    """A name for where in our code, or in the target, the error arises."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/pipeline/" in frame.filename or "/tests/fuzz/" in frame.filename
    ]
    last = frames[-1]
    return f"{type(error).__name__}-{Path(last.filename).stem}-{last.lineno}"


def _by_bytes(target: "Target", folder: Path, seconds: int) -> None:
    import atheris

    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for data in target.seeds:
        (corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]).write_bytes(data)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words if word), "ascii")
    options = (
        f"-max_total_time={seconds}",
        f"-artifact_prefix={folder}/",
        f"-max_len={_MAX_BYTES}",
        f"-timeout={_ONE_INPUT_S}",
        f"-rss_limit_mb={_MEMORY_MB}",
    )
    dictionary = [f"-dict={words}"] if any(target.words) else []
    atheris.Setup([sys.argv[0], *options, *dictionary, str(corpus)], lambda data: _watched(target, bytes(data), folder))
    atheris.Fuzz()


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
    sys.exit(main())
