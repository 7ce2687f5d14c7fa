"""`python -m tests.support.snapshots` writes the snapshots anew."""

from tests.support.snapshots import FOLDER, SNAPSHOTS, snapshot

if __name__ == "__main__":
    for name in SNAPSHOTS:
        (FOLDER / name).write_text(snapshot(name), encoding="utf-8")
