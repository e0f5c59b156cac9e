"""`pgoutput-fast slots` shows, creates and drops the slots of a server."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from pgoutput_fast.capture import create_slot, find_slot
from pgoutput_fast.cli.main import main
from support.forms import and_slow
from support.mirrors import Place, place

__all__ = ["place"]

CTRL_C = b"\x03"


def test_a_slot_is_created_shown_and_dropped(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    dsn = ["--dsn", place.database.dsn]
    place.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE t")
    assert main(["slots", "create", place.slot, "-p", "mirrored", *dsn]) == 0
    assert f"created slot {place.slot} of database {place.database.name}" in capsys.readouterr().out
    assert main(["slots", "ls", *dsn]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "plugin", "database", "active", "confirmed", "kept", "state"]
    (shown,) = (each.split() for each in rows if each.startswith(f"{place.slot} "))
    assert (shown[1:4], shown[-1]) == (["pgoutput", place.database.name, "no"], "reserved")
    assert main(["slots", "ls", "--json", *dsn]) == 0
    found = {each["name"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found[place.slot]["confirmed_flush_lsn"] == shown[4]
    assert isinstance(found[place.slot]["kept_bytes"], int)
    assert main(["slots", "drop", place.slot, "--yes", *dsn]) == 0
    assert capsys.readouterr().out == f"dropped slot {place.slot}\n"
    assert find_slot(place.database.dsn, place.slot) is None


def test_a_publication_that_is_missing_prevents_the_slot(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
    assert main(["slots", "create", place.slot, "-p", "mirored", "--dsn", place.database.dsn]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "publication mirored: it does not exist" in shown.err
    assert "the nearest: mirrored" in shown.err
    assert find_slot(place.database.dsn, place.slot) is None


def test_an_unknown_slot_has_the_nearest_names(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    create_slot(place.database.dsn, place.slot)
    assert main(["slots", "drop", place.slot[:-1], "--yes", "--dsn", place.database.dsn]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"pgoutput-fast: there is no slot {place.slot[:-1]}; the nearest: ")
    assert place.slot in said
    assert said.count("\n") == 1
    assert main(["slots", "create", place.slot, "--dsn", place.database.dsn]) == 1
    assert f"slot {place.slot} exists already: choose another name, or drop it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["create"], "this argument is missing: NAME"),
        (["create", "No Slot"], "a slot's name must have 1 to 63 lower case letters, digits and underscores"),
        (["drop", "lake"], "pass --yes"),
        (["drop"], "this argument is missing: NAME"),
        (["ls", "--all"], "No such option: --all"),
        (["remove"], "No such command 'remove'"),
    ],
)
def test_wrong_usage(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slots", *given, "--dsn", "host=127.0.0.1 port=1"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_user_who_may_not(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    role = f"{place.database.name}_weak"
    place.database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        dsn = place.database.dsn.replace("user=postgres", f"user={role}")
        assert dsn != place.database.dsn
        assert main(["slots", "create", place.slot, "--dsn", dsn]) == 1
        said = capsys.readouterr().err
        assert "REPLICATION" in said
        assert said.count("\n") == 1
    finally:
        place.database.execute(f"DROP ROLE {role}")


@pytest.mark.unsanitized
@pytest.mark.parametrize(("answer", "status"), and_slow([(b"n\n", 1)], [(b"y\n", 0), (CTRL_C, 130)]))
def test_on_a_terminal_it_asks(place: Place, answer: bytes, status: int) -> None:
    create_slot(place.database.dsn, place.slot)
    given = [sys.executable, "-m", "pgoutput_fast", "slots", "drop", place.slot, "--dsn", place.database.dsn]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        given, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_own_terminal
    ) as running:
        try:
            os.close(theirs)
            shown = b""
            while b"[y/N]" not in shown:
                shown += os.read(ours, 1 << 12)
            assert b"the server keeps" in shown
            os.write(ours, answer)
            assert _ends(running, lambda: os.write(ours, answer) if answer == CTRL_C else 0) == status
        finally:
            running.kill()  # else a failure would wait for it
    os.close(ours)
    assert (find_slot(place.database.dsn, place.slot) is None) == (status == 0)


def _ends(running: subprocess.Popen[bytes], again: Callable[[], object]) -> int:
    """Waits for the end, and does the same again each second.

    Python does not notice a Ctrl-C that comes right between its check for signals and its wait for a key.
    """
    for _ in range(240):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return running.wait(1)
        with contextlib.suppress(OSError):  # it has ended in between, and its terminal with it
            again()
    return running.wait(0)


def _own_terminal() -> None:
    """Makes the standard input the terminal of the new session: Ctrl-C then is a signal.

    The signal is not ignored there, even if this run ignores it, as a background job of a script does.
    """
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
