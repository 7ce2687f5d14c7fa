"""`python -m tests.support.snapshots` rewrites the snapshots."""

from tests.support.snapshots import FOLDER, SNAPSHOTS, snapshot

if __name__ == "__main__":
    for name in SNAPSHOTS:
        (FOLDER / name).write_text(snapshot(name), encoding="utf-8")
