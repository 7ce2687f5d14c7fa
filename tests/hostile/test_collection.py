"""Hundreds of hostile inputs for one stack, and the checks after all of them.

Modules beside this one write the inputs. Each input ends as a result, or as a row or line with the reason.
"""

import json
import os
import re
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.hostile import barcode
from tests.hostile.archives import OFFICE, TEXTS
from tests.hostile.arena import Arena
from tests.hostile.http_requests import REQUESTS
from tests.hostile.inputs import COMMANDING, assert_calm, assert_outcomes, fault_of, write_inputs
from tests.hostile.pdfs import BOMBS, LIARS
from tests.hostile.pictures import PICTURES
from tests.hostile.places import AS_ANOTHER_USER, HARMLESS, IN_FOLDERS, PREPARED, SECRET, SETTINGS, TRAPS, Trap
from tests.hostile.programs import ASKING, as_nobody
from tests.hostile.replies import REPLIES
from tests.hostile.songs import SONGS
from tests.hostile.words import ADDRESSES, ARGUMENTS, FILE_NAMES, MARK, STRINGS
from tests.support.cli import new_pdf, together
from tests.support.provider_server import Fault, ProviderServer, Record
from tests.support.rotation import Rotation
from tests.support.samples import picture_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits on memory and the looks at processes are Linux's"),
]
MB = 1_000_000


def test_documents_end_with_their_reason(arena: Arena, rotation: Rotation) -> None:
    folder = arena.folder("documents")
    inputs = write_inputs([*BOMBS, *LIARS, *PICTURES], folder, rotation)
    result = arena.at(folder).run(
        "convert", "--json", "--no-cache", "-o", "out/", *(hostile.name for hostile in inputs)
    )
    assert_calm(result, 1)
    reasons = arena.page_errors()
    documents = result.documents()
    assert_outcomes(
        inputs,
        {
            hostile["input"]: (hostile["status"], hostile["error"] or reasons.get(hostile["id"]))
            for hostile in documents
        },
    )


def test_screenshots_end_with_their_reason(arena: Arena, rotation: Rotation) -> None:
    folder = arena.folder("frames")
    inputs = write_inputs(PICTURES, folder, rotation)
    result = arena.at(folder).run("screenshots", "add", "--json", "--no-wait", *(hostile.name for hostile in inputs))
    assert_calm(result, 0, 1, 3)
    assert_outcomes(inputs, {file["input"]: (file["outcome"], file["error"]) for file in result.json()["files"]})


def test_knowledge_ends_with_its_reason(arena: Arena, rotation: Rotation) -> None:
    folder = arena.folder("knowledge")
    inputs = write_inputs([*OFFICE, *TEXTS], folder, rotation)
    assert arena.cli.run("kb", "create", "manuals").code == 0
    added = arena.at(folder).run("kb", "add", "manuals", "--wait", "--json", *(hostile.name for hostile in inputs))
    assert_calm(added, 0, 3)
    listed = arena.cli.run("kb", "items", "manuals", "--json", "--limit", "1000")
    ends = {item["name"]: (str(item["status"]), item["error"]) for item in listed.json()}
    ends |= {refused["path"]: ("failed", refused["error"]) for refused in added.json()["failed"]}
    assert_outcomes(inputs, ends)


def test_songs_end_as_rows(arena: Arena, rotation: Rotation) -> None:
    folder = arena.folder("songs")
    inputs = write_inputs(SONGS, folder, rotation)
    for trap in [*TRAPS, *IN_FOLDERS]:
        trap.make(folder / f"trap {trap.name}.mp3", arena.outside)
    synced = arena.cli.run("music", "sync", "--json")
    assert_calm(synced, 0)
    listed = arena.cli.run("music", "show", "--json", "--limit", "1000")
    assert_calm(listed, 0)
    songs = {song["path"] for song in listed.json()}
    assert_outcomes(
        inputs, {hostile.name: ("listed" if hostile.name in songs else "left out", "") for hostile in inputs}
    )
    assert not [path for path in songs if "outside" in path]


def test_replies_cost_their_page_alone(arena: Arena, harmful_provider: ProviderServer, rotation: Rotation) -> None:
    folder = arena.folder("replies")
    due = {REPLIES.index(reply): reply for reply in rotation.of(REPLIES)}
    for number in due:
        barcode.picture(number).save(folder / f"{number}.png")

    def fault(record: Record) -> Fault | None:
        asks_for_a_page = record.path.endswith("completions")
        return REPLIES[barcode.read(record)].make(record) if asks_for_a_page else None

    harmful_provider.script.rule = fault
    result = arena.at(folder).run(
        "convert", "--provider", "ai", "--json", *(f"{number}.png" for number in due), timeout_s=540
    )
    harmful_provider.script.rule = None
    assert_calm(result, 1)
    ends = {int(document["input"][:-4]): document for document in result.documents()}
    reasons = arena.page_errors()
    wrong = [
        f"{reply.name}: {ends[number]['status']}: {ends[number]['error'] or reasons.get(ends[number]['id'])}"
        for number, reply in due.items()
        if not re.search(reply.outcome, ends[number]["status"])
    ]
    assert not wrong, "\n".join(wrong)
    stats = arena.cli.run("calls", "stats", "--json")
    assert_calm(stats, 0)
    barcode.picture(1000).save(folder / "good.png")
    assert arena.at(folder).run("convert", "--provider", "ai", "good.png").code == 0, (
        "no cap is reached, and the breaker closes again"
    )


def test_strings_are_answered_or_refused_in_words(arena: Arena) -> None:
    folder = arena.folder("strings")
    new_pdf(folder / "good.pdf")
    command = [sys.executable, "-c", ASKING]
    result = arena.at(folder).execute(command, stdin=json.dumps(STRINGS))
    assert result.code == 0, result.err[-3000:]
    assert not result.out.strip(), result.out


def test_arguments_are_refused_in_words(arena: Arena) -> None:
    folder = arena.folder("arguments")
    new_pdf(folder / "good.pdf")
    picture_of(["Good"]).save(folder / "good.png")
    document = arena.cli.newest()
    filled = [[word.replace("{document}", document) for word in words] for words in ARGUMENTS.values()]
    results = zip(ARGUMENTS, arena.at(folder).run_all(filled), strict=True)
    wrong = [f"{name}: {problem}" for name, result in results if (problem := fault_of(result, 0, 1, 2, 3))]
    assert not wrong, "\n".join(wrong)


def test_servers_of_this_machine_are_not_asked(arena: Arena) -> None:
    assert arena.cli.run("kb", "create", "pages").code == 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        addresses = [address.format(port=listener.getsockname()[1]) for address in ADDRESSES]
        result = arena.cli.run("kb", "add", "pages", "--wait", "--json", "--", *addresses)
        assert_calm(result, 1, 3)
        with pytest.raises(TimeoutError):
            listener.accept()
    items = arena.cli.run("kb", "items", "pages", "--json").json()
    assert {item["status"] for item in items} <= {"failed"}
    assert len(items) + len(result.json()["failed"]) == len(addresses)


def test_hostile_file_names_cause_no_effect(arena: Arena) -> None:
    folder = arena.folder("names")
    names = [os.fsdecode(name) for name in FILE_NAMES]
    good = new_pdf(folder / "template.pdf").read_bytes()
    (folder / "template.pdf").unlink()
    for number, name in enumerate(names):
        (folder / str(number)).mkdir()
        (folder / str(number) / name).write_bytes(good.replace(b"This is page 1", b"This is page %d" % (1000 + number)))
    result = arena.at(folder).run("convert", ".", "--json", "-o", "out/")
    assert_calm(result, 0, 1)
    documents = result.documents()
    assert len(documents) == len([name for name in names if not name.startswith(".")])
    texts = []
    for document in documents:
        assert document["status"] == "COMPLETED", document
        if document["output"]:
            texts.append((folder / os.fsdecode(os.fsencode(document["output"]))).read_text())
    assert len(set(texts)) == len(texts), "no result replaced another"
    assert {path.name for path in folder.rglob("*.pdf") if "out" not in path.parts} == set(names)
    assert not list(folder.rglob("owned*"))


def test_only_regular_files_are_read(arena: Arena) -> None:
    folder = arena.folder("places")
    (folder / "inside").mkdir()
    new_pdf(folder / "inside" / "good.pdf")
    picture_of(["In a folder"]).save(folder / "inside" / "good.png")
    (folder / "inside" / "good.txt").write_text("words in a folder")
    for trap in [*TRAPS, *IN_FOLDERS]:
        for suffix in (".pdf", ".png", ".txt"):
            trap.make(folder / "inside" / f"{trap.name}{suffix}", arena.outside)
    for number, trap in enumerate(TRAPS):
        trap.make(folder / f"{number}.pdf", arena.outside)
    cli, named = arena.at(folder), [path.name for path in sorted(folder.iterdir()) if _is_refused_by_itself(path)]
    assert cli.run("kb", "create", "places").code == 0
    commands = [
        ["convert", "--json", "-o", "out/", "inside", *named],
        ["screenshots", "add", "--json", "--no-wait", "inside", *named],
        ["kb", "add", "places", "--json", "inside", *named],
    ]
    converted, ingested, added = cli.run_all(commands)
    for result in (converted, ingested, added):
        assert_calm(result, 1, 3)
    ends = {document["input"]: document["status"] for document in converted.documents()}
    assert {ends.pop(name) for name in named} == {"REFUSED"}
    assert ends.pop("inside/good.pdf") == "COMPLETED"
    assert ends.pop("inside/good.png") != "REFUSED"
    assert ends == {f"inside/a terabyte of nothing{suffix}": "REFUSED" for suffix in (".pdf", ".png")}
    assert {file["outcome"] for file in ingested.json()["files"] if file["input"] in named} == {"refused"}
    assert {file["input"] for file in ingested.json()["files"] if file["outcome"] in {"accepted", "duplicate"}} == {
        "inside/good.png"
    }
    assert {item["name"] for item in added.json()["created"]} == {"good.pdf", "good.png", "good.txt"}


def _is_refused_by_itself(path: Path) -> bool:
    """Select neither folders, which Penstock walks, nor dangling links, for which it refuses the whole command."""
    return not path.is_dir() and path.exists()


def test_traps_in_the_output_folder_are_neither_followed_nor_replaced(arena: Arena) -> None:
    folder = arena.folder("prepared")
    for number, trap in enumerate(PREPARED):
        new_pdf(folder / f"{number}.pdf")
        trap.make(folder / f"{number}.pdf", arena.outside)
    result = arena.at(folder).run(
        "convert", "--json", "--pictures", *(f"{number}.pdf" for number, _ in enumerate(PREPARED))
    )
    assert_calm(result, 0, 1)
    assert len(result.documents()) == len(PREPARED)
    assert all(path.read_text() == "a secret that is nobody's" for path in arena.outside.iterdir())
    present = [trap.name for number, trap in enumerate(PREPARED) if _is_there(trap, folder / f"{number}.pictures")]
    assert "pictures of somebody" in present


def _is_there(trap: Trap, pictures: Path) -> bool:
    return trap.name == "pictures of somebody" and pictures.is_file() and pictures.read_text() == "mine"


def test_settings_are_named_and_their_secrets_are_not(arena: Arena) -> None:
    users = [arena.cli.using(**variables) for variables, _ in SETTINGS.values()]
    results = together(partial(user.run, "status") for user in users)
    wrong = []
    for (name, (_, message)), result in zip(SETTINGS.items(), results, strict=True):
        if problem := fault_of(result, 0, 1):
            wrong.append(f"{name}: {problem}")
        elif (
            SECRET in result.err + result.out
            or not re.search(message, result.out + result.err)
            or len(result.err) > 2_000
        ):
            wrong.append(f"{name} says in {len(result.err)} characters: {result.err[:500]}")
    assert not wrong, "\n".join(wrong)


def test_variables_of_others_change_nothing(arena: Arena) -> None:
    folder = arena.folder("modules")
    for name in ("tasks.py", "celeryconfig.py", "sitecustomize.py", "usercustomize.py", "json.py"):
        (folder / name).write_text("open('owned', 'w')\nraise ImportError('mine')\n")
    users = [arena.at(folder).using(**variables) for variables in list(HARMLESS.values())[1:]]
    for result in together(partial(user.run, "status") for user in users):
        assert_calm(result, 0)
    assert not (folder / "owned").exists()


def test_requests_are_answered_or_refused(arena: Arena) -> None:
    wrong = []
    for request in REQUESTS:
        status, body = _sent(arena.port, request.data)
        if status not in request.statuses or b"Traceback" in body or MARK.encode() in body:
            wrong.append(f"{request.name}: {status} {body[:300]!r}")
    assert not wrong, "\n".join(wrong)
    status, _ = _sent(arena.port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert status == 200


def _sent(port: int, data: bytes) -> tuple[int, bytes]:
    """Send a request; return the status and the whole answer, or status 0 without an answer."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        with suppress(ConnectionError):
            connection.sendall(data)
        with suppress(ConnectionError, TimeoutError):
            while piece := connection.recv(65_536):
                answer += piece
    status_line = re.match(rb"HTTP/1\.1 (\d+)", answer)
    return int(status_line[1]) if status_line else 0, answer


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_can_read_nothing(arena: Arena) -> None:
    words = " ".join(
        word
        for process in arena.cli.processes()
        for word in process.cmdline()
        if "redis-server" in process.name() or ".sock" in word
    )
    socket_path = re.search(r"\S+\.sock", words)
    redis = socket_path[0].removeprefix("unixsocket:") if socket_path else str(arena.root / "data" / "redis.sock")
    for name, act in AS_ANOTHER_USER.items():
        worked = as_nobody(act, {"data": str(arena.root / "data"), "redis": redis})
        assert not worked, name


LISTS = [
    ["documents", "list", "--limit", "1000"],
    ["documents", "search", "alert"],
    ["kb", "list"],
    ["kb", "items", "manuals"],
    ["kb", "search", "manuals", "words"],
    ["music", "show", "--limit", "1000"],
    ["music", "search", "red"],
    ["screenshots", "sources"],
    ["screenshots", "rejected"],
    ["calls", "list", "--limit", "1000"],
    ["keys", "list"],
    ["webhooks", "list"],
    ["status"],
]


def test_no_output_has_commands_for_a_terminal(arena: Arena, rotation: Rotation) -> None:
    """Commands list the titles, names, errors and replies of all inputs on a terminal."""
    folder = arena.folder("terminal")
    inputs = write_inputs([hostile for hostile in LIARS if hostile.name == "harmful-text.pdf"], folder, rotation)
    shown_as = arena.at(folder).run("convert", "--json", "--fresh", inputs[0].name).documents()[0]["id"]
    if arena.cli.run("kb", "show", "manuals").code:
        assert arena.cli.run("kb", "create", "manuals").code == 0
    commands = [*LISTS, ["documents", "text", shown_as], ["documents", "show", shown_as]]
    wrong = []
    for command in commands:
        code, shown = arena.cli.terminal(*command)
        rest = re.sub(r"\x1b\[[0-9;?]*[mKAGhlJ]", "", shown.replace(MARK, "\a").replace("\r\n", "\n"))
        if code or (sequence := COMMANDING.search(rest)):
            at = sequence.start() if not code and sequence else len(rest)
            wrong.append(f"{command}: {code}: {rest[max(0, at - 100) : at + 100]!a}")
    assert not wrong, "\n".join(wrong)


def test_the_stack_is_well_after_all_hostile_inputs(arena: Arena) -> None:
    folder = arena.folder("after")
    new_pdf(folder / "good.pdf", pages=3)
    assert arena.at(folder).run("convert", "good.pdf").code == 0
    assert "This is page 3" in (folder / "good.md").read_text()
    status = arena.cli.run("status", "--json")
    assert_calm(status, 0)
    assert arena.cli.claims() == 0
    calm = max(arena.calm.values())
    for program, size in arena.memory().items():
        assert size < calm + 250 * MB, (program, size, arena.calm)
    for role, size in arena.peak.items():
        assert size < 1_500 * MB, (role, arena.peak)
    assert not arena.changed_files(), "no file around the data folder changed"
    for process in arena.cli.processes():
        with suppress(psutil.NoSuchProcess):
            assert process.ppid() != 1 or "redis" in process.name(), process.cmdline()
