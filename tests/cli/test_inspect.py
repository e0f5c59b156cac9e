"""`pgoutput-fast inspect` shows messages of files, segments and slots, up to the byte that is wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast.capture import create_slot, find_slot
from pgoutput_fast.cli.main import main
from pgoutput_fast.encode import Writer
from support.capturing import wait_until
from support.message_files import ORDERS, lines, stream, write_all, write_segments
from support.mirrors import Place, place

__all__ = ["place"]

pytestmark = pytest.mark.unsanitized

Shown = pytest.CaptureFixture[str]

KINDS = [
    "begin", "relation", "insert", "relation", "insert", "commit", "begin", "update", "delete", "commit"
]  # fmt: skip


def objects(arguments: list[str], capsys: Shown, status: int = 0) -> list[dict[str, Any]]:
    assert main(["inspect", *arguments, "--json"]) == status
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@contextlib.contextmanager
def following(arguments: list[str], stderr: int | None = None) -> Iterator[Callable[[], dict[str, Any]]]:
    """A process with --follow. Gives a function that waits for its next message."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pgoutput_fast", *arguments, "--follow", "--json"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    assert process.stdout is not None
    lines_of = process.stdout
    deadline = threading.Timer(240, process.kill)
    deadline.start()
    try:
        yield lambda: json.loads(lines_of.readline())
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()


def error(arguments: list[str], capsys: Shown, status: int = 1) -> str:
    """The one line that a command says when it cannot do its work."""
    assert main(arguments) == status
    said = capsys.readouterr().err
    assert said.startswith("pgoutput-fast: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("kind", ["recvlogical", "raw", "psql", "hex", "parquet", "arrow"])
def test_each_kind_of_file_is_recognised(kind: str, tmp_path: Path, capsys: Shown) -> None:
    found = objects([str(write_all(tmp_path)[kind])], capsys)
    assert [each["kind"] for each in found] == KINDS
    assert found[2]["new"] == {"id": "1", "note": "two\nlines"}
    assert (found[8]["key"], found[8]["tables"]) == ({"id": "1", "note": None}, ["public.orders"])
    assert [each["xid"] for each in found] == [7] * 6 + [8] * 4
    assert (found[3]["lsn"] == "0/4") == (kind == "psql")


def test_what_a_person_sees(tmp_path: Path, capsys: Shown) -> None:
    assert main(["inspect", str(write_all(tmp_path)["recvlogical"]), "--kind", "insert", "--limit", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2: Insert, 28 bytes; xid 7; public.orders",
        "  relation_oid: 16401 (public.orders)",
        "  new tuple (N), 2 columns",
        "    1 id int4: text, 1 byte: '1'",
        "    2 note text: text, 9 bytes: 'two\\nlines'",
    ]


def test_hex_digits_as_arguments(capsys: Shown) -> None:
    wal = stream()
    found = objects([wal[0].hex(), f"\\x{wal[1].hex()}", wal[2].hex().upper()], capsys)
    assert [each["kind"] for each in found] == KINDS[:3]
    assert found[2]["new"] == {"id": "1", "note": "two\nlines"}
    assert "odd number" in error(["inspect", "42000"], capsys)
    assert error(["inspect", wal[0].hex(), "zz"], capsys) == (
        "pgoutput-fast: there is no file zz, and it is not a message in hex digits\n"
    )


def test_hex_digits_beside_a_file(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "raw").write_bytes(b"".join(stream()))
    found = objects([stream()[2].hex(), str(tmp_path / "raw")], capsys)
    assert [each["kind"] for each in found] == ["insert", *KINDS]


@pytest.mark.parametrize("kind", ["recvlogical", "psql", "parquet"])
def test_standard_input(kind: str, tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_all(tmp_path)[kind].read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert [each["kind"] for each in objects([], capsys)] == KINDS


def test_filters(tmp_path: Path, capsys: Shown) -> None:
    path = str(write_all(tmp_path)["psql"])

    def kinds(*arguments: str) -> list[str]:
        return [each["kind"] for each in objects([path, *arguments], capsys)]

    assert kinds("--table", "public.customers") == ["relation", "insert"]
    assert kinds("--xid", "8") == KINDS[6:]
    assert kinds("--lsn", "0/2..0/3") == ["relation", "insert"]
    assert kinds("--lsn", "0/9..") == ["delete", "commit"]
    assert kinds("--kind", "insert,delete", "--limit", "2") == ["insert", "insert"]
    for words in (["--xid", "9"], ["--kind", "truncate", "--json"], ["--lsn", "0/99.."]):
        assert main(["inspect", path, *words]) == 0
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", "no message matches the filters\n")
    said = error(["inspect", path, "--table", "public.order"], capsys)
    assert "there is public.customers, public.orders" in said
    assert "--table public.orders" in error(["inspect", path, "--table", "orders"], capsys, 2)
    said = error(["inspect", path, "--table", "public.Legacy Data"], capsys, 2)
    assert """--table 'public."Legacy Data"'""" in said
    assert "insert" in error(["inspect", path, "--kind", "inserts"], capsys, 2)
    assert "0/1B0D988.." in error(["inspect", path, "--lsn", "12"], capsys, 2)


def test_messages_without_a_position_are_counted(tmp_path: Path, capsys: Shown) -> None:
    """A file of pg_recvlogical has no LSNs of messages. The end of the transaction stands for them."""
    path = str(write_all(tmp_path)["recvlogical"])
    assert [each["xid"] for each in objects([path, "--lsn", "0/C8.."], capsys)] == [8] * 4
    assert main(["inspect", stream()[2].hex(), "--lsn", "0/1.."]) == 0
    assert capsys.readouterr().err == "left out: 1 message without a known LSN\n"


def test_a_stream_block_in_a_raw_file(tmp_path: Path, capsys: Shown) -> None:
    """A Stream Abort has two lengths. In a raw file nothing stands behind it."""
    for proto in (2, 4):
        server = Writer(proto, streaming="parallel" if proto == 4 else "on")
        wal = server.stream_start(9) + server.change(ORDERS, "insert", new=["1", "a"]) + server.stream_stop()
        lsns = {"abort_lsn": 300, "abort_timestamp": 0} if proto == 4 else {}
        wal += server.stream_abort(9, 9, **lsns) + server.stream_start(10) + server.stream_stop()
        path = tmp_path / f"raw{proto}"
        path.write_bytes(b"".join(wal))
        found = objects([str(path)], capsys)
        assert [each["kind"] for each in found] == [
            "stream_start", "relation", "insert", "stream_stop", "stream_abort", "stream_start", "stream_stop"
        ]  # fmt: skip
        assert (found[2]["xid"], found[2]["in_stream"], found[4]["subxid"]) == (9, True, 9)


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [b"", b"\n"], ids=["raw", "recvlogical"])
def test_a_damaged_message_is_shown_up_to_the_wrong_byte(
    separator: bytes, tmp_path: Path, capsys: Shown
) -> None:
    wal = stream()
    update = bytearray(wal[7])
    update[8] = ord("x")  # the kind of the first column
    data = b"".join(each + separator for each in [*wal[:7], bytes(update), *wal[8:]])
    path = tmp_path / "damaged"
    path.write_bytes(data)
    assert main(["inspect", str(path)]) == 1
    shown = capsys.readouterr()
    assert "7: Update" in shown.out
    assert "  damaged at byte 8: " in shown.out.splitlines()[-1]
    assert shown.err.count("\n") == 1


def test_a_file_that_is_cut_off(tmp_path: Path, capsys: Shown) -> None:
    path = tmp_path / "cut"
    path.write_bytes(lines(stream())[:-40])
    assert main(["inspect", str(path)]) == 1
    shown = capsys.readouterr()
    assert [line for line in shown.out.splitlines() if line[0].isdigit()][-1] == "8: Delete, 3 bytes; xid 8"
    assert "ends within its last message" in shown.err


def test_damage_within_a_table_of_messages(tmp_path: Path, capsys: Shown) -> None:
    """What delimits messages is whole there, so those behind the damaged one are shown, too."""
    wal = stream()
    path = tmp_path / "hex"
    path.write_text("\n".join([wal[0].hex(), wal[2].hex()[:-4], wal[5].hex()]))
    found = objects([str(path)], capsys, 1)
    assert [each["kind"] for each in found] == ["begin", "insert", "commit"]
    assert found[1]["damaged_at"] == 26


# ---- what is no input ------------------------------------------------------------------------------------------------


def test_what_is_no_input(tmp_path: Path, capsys: Shown) -> None:
    places = write_all(tmp_path)

    def file(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    assert "is empty" in error(["inspect", file("empty", b"")], capsys)
    assert "something else" in error(["inspect", file("text", b"# A text\n")], capsys)
    assert "something else" in error(["inspect", file("text", b"There is a text.\n")], capsys)
    assert "test_decoding" in error(["inspect", file("text", b"BEGIN 725\n")], capsys)
    assert "gzip" in error(["inspect", file("packed", b"\x1f\x8b\x08")], capsys)
    parquet = places["parquet"].read_bytes()
    assert "cut off" in error(["inspect", file("cut.parquet", parquet[:-100])], capsys)
    assert "there is no file" in error(["inspect", str(tmp_path / "nowhere")], capsys)
    (tmp_path / "none").mkdir()
    assert "has no segments" in error(["inspect", str(tmp_path / "none")], capsys)
    dsn = "host=127.0.0.1 port=1 password=secret"
    said = error(["inspect", "--dsn", dsn, "--slot", "s", "-p", "p"], capsys)
    assert "port 1" in said
    assert "secret" not in said
    both = ["inspect", str(places["raw"]), "--slot", "s", "-p", "p"]
    assert "either a slot or a file" in error(both, capsys, 2)
    assert "--publication" in error(["inspect", "--slot", "s"], capsys, 2)
    assert "--follow" in error(["inspect", str(places["raw"]), "--follow"], capsys, 2)


def test_columns_of_a_parquet_file(tmp_path: Path, capsys: Shown) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = str(tmp_path / "messages.parquet")
    wal = pa.array(stream(), pa.binary())
    pq.write_table(pa.table({"other": wal, "payload": wal, "lsn": range(10)}), path)
    assert [each["lsn"] for each in objects([path], capsys)][:3] == [None, "0/1", "0/2"]
    pq.write_table(pa.table({"one": wal, "other": wal}), path)
    assert "2 binary columns" in error(["inspect", path], capsys)
    pq.write_table(pa.table({"id": range(3)}), path)
    assert "no binary column" in error(["inspect", path], capsys)
    pq.write_table(pa.table({"data": pa.array([b"E", None], pa.binary())}), path)
    assert "row 1 has no message" in error(["inspect", path], capsys)


# ---- segments, slots, pipes ------------------------------------------------------------------------------------------


def test_segments(tmp_path: Path, capsys: Shown) -> None:
    directory = write_segments(tmp_path / "segments")
    found = objects([str(directory)], capsys)
    assert [each["seq"] for each in found] == list(range(len(found)))
    assert found[0]["lsn"] == "0/32"
    (truncate,) = objects([str(directory), "--kind", "truncate"], capsys)
    assert (truncate["tables"], truncate["xid"]) == (["public.orders", "public.customers"], 10)
    first = min(directory.iterdir())
    assert len(objects([str(first), "--table", "public.orders"], capsys)) == 2


def test_a_directory_that_grows(tmp_path: Path) -> None:
    whole = write_segments(tmp_path / "whole", 2)
    directory = tmp_path / "segments"
    directory.mkdir()
    first, second = sorted(whole.iterdir())
    shutil.copy(first, directory)
    with following(
        ["inspect", str(directory), "--kind", "insert", "--table", "public.orders"]
    ) as next_message:
        assert next_message()["new"]["id"] == "0"
        shutil.copy(second, tmp_path / second.name)
        (tmp_path / second.name).rename(directory / second.name)
        assert next_message()["new"]["id"] == "1"


@pytest.mark.parametrize("words", [["inspect"], ["segments", "cat"]], ids=" ".join)
def test_a_directory_without_segments_is_followed(words: list[str], tmp_path: Path) -> None:
    """A capture may begin after its reader. On a terminal, a line says what the command waits for."""
    directory = tmp_path / "segments"
    directory.mkdir()
    ours, theirs = pty.openpty()
    with following([*words, str(directory)], theirs) as next_message:
        os.close(theirs)
        said = b""
        while b"firstone" not in b"".join(said.split()):  # a terminal may give a line in pieces
            said += os.read(ours, 1 << 16)
        assert "".join(said.decode().split()) == f"{directory}hasnosegmentsyet:waitingforthefirstone"
        write_segments(directory, 2)
        assert [next_message()["seq"] for _ in range(10)] == list(range(10))
    os.close(ours)


def test_a_pipe_that_nobody_reads_is_quiet(tmp_path: Path) -> None:
    path = tmp_path / "changes"
    path.write_bytes(lines(stream()) * 2000)
    command = f"{sys.executable} -m pgoutput_fast inspect {path} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == ("0: Begin, 21 bytes; xid 7\n", "")


@pytest.mark.parametrize("words", [["inspect"], ["decode", "--out", "/nowhere"]], ids=lambda words: words[0])
def test_a_slot_without_rights(words: list[str], place: Place, capsys: Shown) -> None:
    role = f"{place.database.name}_role"
    place.database.execute(f"CREATE ROLE {role} LOGIN", "CREATE PUBLICATION mirrored FOR ALL TABLES")
    create_slot(place.database.dsn, place.slot)
    dsn = re.sub(r"user=\S+", f"user={role}", place.database.dsn)
    try:
        said = error([*words, "--dsn", dsn, "--slot", place.slot, "-p", "mirrored"], capsys)
    finally:
        place.database.execute(f"DROP ROLE {role}")
    assert f"Run ALTER ROLE {role} REPLICATION as a superuser." in said
    assert "ERROR:" not in said


def test_a_slot(place: Place, capsys: Shown) -> None:
    """Nothing is consumed, and the next look of --follow gives only what is new."""
    database = place.database
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE orders"
    )
    create_slot(database.dsn, place.slot)
    database.execute("INSERT INTO orders VALUES (1), (2)")
    words = ["--dsn", database.dsn, "--slot", place.slot, "--publication", "mirrored"]
    for _ in range(2):
        found = objects(words, capsys)
        assert [each["kind"] for each in found] == ["begin", "relation", "insert", "insert", "commit"]
    before = find_slot(database.dsn, place.slot)
    with following(["inspect", *words, "--kind", "insert"]) as next_message:
        ids = [next_message()["new"]["id"] for _ in range(2)]
        database.execute("INSERT INTO orders VALUES (3)")
        ids.append(next_message()["new"]["id"])
    assert ids == ["1", "2", "3"]
    after = find_slot(database.dsn, place.slot)
    assert before is not None
    assert after is not None
    assert after.confirmed_flush_lsn == before.confirmed_flush_lsn
    assert "it has " + place.slot in error(["inspect", *words[:2], "--slot", "no", "-p", "mirrored"], capsys)
    assert "it does not exist" in error(["inspect", *words[:4], "-p", "other"], capsys)


@pytest.mark.parametrize("kind", ["recvlogical", "segments"])
def test_a_summary(kind: str, tmp_path: Path, capsys: Shown) -> None:
    places = {**write_all(tmp_path), "segments": tmp_path / "segments"}
    write_segments(tmp_path / "segments")
    command = ["segments", "cat"] if kind == "segments" else ["inspect"]
    assert main([*command, str(places[kind]), "--json"]) == 0
    shown = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    assert main([*command, str(places[kind]), "--summary", "--json"]) == 0
    (found,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert found["kinds"] == Counter(each["kind"] for each in shown)
    assert found["messages"] == len(shown)
    assert found["bytes"] == sum(each["bytes"] for each in shown)
    orders = Counter(each["kind"] for each in shown if "public.orders" in each["tables"])
    assert orders["insert"] > 0
    for kind_of_change in ("insert", "update", "delete", "truncate"):
        assert found["tables"]["public.orders"][kind_of_change] == orders[kind_of_change]
    assert main([*command, str(places[kind]), "--summary", "--table", "public.orders"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["table", "insert", "update", "delete", "truncate", "bytes"]
    (row,) = (each for each in rows if each.startswith("public.orders "))
    assert row.split()[:2] == ["public.orders", str(orders["insert"])]
    assert last.startswith(f"{orders.total()} messages, ")


def test_a_summary_of_an_input_that_is_cut_off(tmp_path: Path, capsys: Shown) -> None:
    whole = write_all(tmp_path)["raw"].read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-3])
    assert main(["inspect", str(tmp_path / "cut"), "--summary"]) == 1
    shown = capsys.readouterr()
    assert "public.orders" in shown.out
    assert shown.err
    assert main(["inspect", str(tmp_path / "cut"), "--summary", "--follow"]) == 2
    assert "leave out one of them" in capsys.readouterr().err


def test_sigterm_while_the_standard_input_is_read(tmp_path: Path) -> None:
    """Its copy goes."""
    with subprocess.Popen(
        [sys.executable, "-m", "pgoutput_fast", "inspect"],
        stdin=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        wait_until(lambda: any(tmp_path.glob("*/input")))
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
