"""`pgoutput-fast snapshot` writes published tables as Parquet files, and leaves no slot behind that nobody reads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pgoutput_fast.capture import find_slot, list_slots
from pgoutput_fast.cli.main import main
from support.capturing import wait_until
from support.forms import and_slow
from support.mirrors import Place, place

__all__ = ["place"]


@pytest.fixture
def shop(place: Place) -> Place:
    """A database with two tables and a publication."""
    place.database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT generate_series(1, 30)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    return place


def test_tables_become_files(shop: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "tables"
    words = ["snapshot", "--dsn", shop.database.dsn, "-p", "mirrored", "--target", str(target)]
    assert main([*words, "--slot", shop.slot]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    header, *rows, last = shown.out.splitlines()
    assert header.split() == ["table", "rows", "read", "rejects", "directory"]
    assert [each.split()[:2] for each in rows] == [["public.customers", "0"], ["public.orders", "30"]]
    assert last.endswith(f"; slot {shop.slot} sends what changes after that")
    assert pq.read_table(target / "public.orders", partitioning=None)["id"].to_pylist() == list(range(1, 31))
    assert find_slot(shop.database.dsn, shop.slot) is not None
    # The tables are there already, from another snapshot.
    assert main(words) == 1
    assert "load into another directory, or remove this one" in capsys.readouterr().err


def test_one_table_for_programs(shop: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "tables"
    before = [each.name for each in list_slots(shop.database.dsn)]
    words = ["snapshot", "--dsn", shop.database.dsn, "-p", "mirrored", "--target", str(target)]
    assert main([*words, "--table", "public.orders", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["table"], found["rows"], found["slot"]) == ("public.orders", 30, None)
    assert found["path"] == str(target / "public.orders")
    # The server drops the temporary slot when it notices that its client has ended.
    wait_until(lambda: [each.name for each in list_slots(shop.database.dsn)] == before)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-p", "miror"], "there is no publication miror; the nearest: mirrored"),
        (["-p", "mirrored", "--table", "public.ordrs"], "public.ordrs is not published here"),
    ],
)
def test_a_failure_leaves_no_slot(
    shop: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    words = [
        "snapshot",
        "--dsn",
        shop.database.dsn,
        "--target",
        str(tmp_path / "tables"),
        "--slot",
        shop.slot,
    ]
    assert main([*words, *more]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert find_slot(shop.database.dsn, shop.slot) is None


@pytest.mark.parametrize("command", ["snapshot", "slots create"])
def test_a_user_who_may_not_replicate_is_told_what_to_do(
    shop: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    role = f"{shop.slot}_plain"
    shop.database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        words = ["-p", "mirrored", "--target", str(tmp_path / "t")] if command == "snapshot" else [shop.slot]
        assert main([*command.split(), "--dsn", f"{shop.database.dsn} user={role}", *words]) == 1
        said = capsys.readouterr().err
        assert f"Run ALTER ROLE {role} REPLICATION as a superuser" in said
        assert "you named none" not in said
        assert said.count("\n") == 1
        assert find_slot(shop.database.dsn, shop.slot) is None
    finally:
        shop.database.execute(f"DROP ROLE {role}")


# A command that gets a signal when its load begins to write.
SIGNALLED = """
import os, sys
from pgoutput_fast.cli.main import main
from pgoutput_fast.snapshot.files import TableDirectory

writing = TableDirectory.writing

def signalled(*arguments):
    os.kill(os.getpid(), int(sys.argv[1]))
    return writing(*arguments)

TableDirectory.writing = signalled
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.unsanitized
@pytest.mark.parametrize(("number", "status"), and_slow([(signal.SIGINT, 130)], [(signal.SIGTERM, 143)]))
def test_a_signal_leaves_no_slot(shop: Place, tmp_path: Path, number: signal.Signals, status: int) -> None:
    words = [
        "snapshot",
        "--dsn",
        shop.database.dsn,
        "-p",
        "mirrored",
        "--target",
        str(tmp_path),
        "--slot",
        shop.slot,
    ]
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number)), *words], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert find_slot(shop.database.dsn, shop.slot) is None


@pytest.mark.unsanitized
def test_ctrl_c_while_the_server_waits_for_a_transaction(shop: Place, tmp_path: Path) -> None:
    words = [
        "snapshot",
        "--dsn",
        shop.database.dsn,
        "-p",
        "mirrored",
        "--target",
        str(tmp_path),
        "--slot",
        shop.slot,
    ]
    with shop.database.session() as writing, writing.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO orders VALUES (0)")
        running = subprocess.Popen(
            [sys.executable, "-m", "pgoutput_fast", *words], stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: running.poll() is not None or find_slot(shop.database.dsn, shop.slot) is not None)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=240)
        # The server says that it has cancelled the command before it drops the slot.
        wait_until(lambda: find_slot(shop.database.dsn, shop.slot) is None)
        cursor.execute("ROLLBACK")
    assert (running.returncode, said) == (130, "pgoutput-fast: stopped\n")


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot"]) == 2
    assert capsys.readouterr().err == (
        "pgoutput-fast: these arguments are missing: --publication, --target\n"
    )
    (tmp_path / "file").touch()
    assert main(["snapshot", "-p", "p", "--target", str(tmp_path / "file")]) == 2
    assert "must be a directory" in capsys.readouterr().err
