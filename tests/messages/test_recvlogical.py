"""read_recvlogical(): files of the real pg_recvlogical, files that were cut or damaged, and files of something else."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import textwrap
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.protocol.limits import RECEIVED_BYTES
from support import fixtures, pg
from support.paths import DOCS
from support.streaming import streaming
from support.streams import RandomChoices, make_stream


def written(path: Path, payloads: Sequence[bytes]) -> Path:
    """A file as pg_recvlogical writes it."""
    path.write_bytes(b"".join(payload + b"\n" for payload in payloads))
    return path


def ends(payloads: Sequence[bytes]) -> list[int]:
    """Where each message and its newline end in the file."""
    return list(itertools.accumulate(len(payload) + 1 for payload in payloads))


# ---- the real pg_recvlogical ---------------------------------------------------------------------------------------

LINES = "'one\ntwo\r\n\n'"
CHANGES = [
    "CREATE TABLE lines (id int PRIMARY KEY, t text, b bytea)",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
    "CREATE TYPE mood AS ENUM ('sad', E'o\nk')",
    'CREATE TABLE "new\nline" (m mood)',
    f"INSERT INTO lines VALUES (10, {LINES}, '\\x0a0a0a'), (2570, NULL, '\\x')",
    f"UPDATE lines SET t = {LINES} || t WHERE id = 10",
    "DELETE FROM lines WHERE id = 10",
    "INSERT INTO \"new\nline\" VALUES (E'o\nk')",
]


def recvlogical_of(version: int) -> Path:
    """The program of a server, or the newest one: it works with older servers, too."""
    paths = {each.version: each.bindir / "pg_recvlogical" for each in pg.installations().values()}
    found = {each: path for each, path in paths.items() if path.exists()}
    if not found:
        pytest.skip("no installation of PostgreSQL here has pg_recvlogical")
    return found.get(version, found[max(found)])


def receive(database: pg.Database, slot: pg.Slot, path: Path, options: dict[str, str]) -> Path:
    """What the slot has now, as pg_recvlogical writes it to a file."""
    (end,) = database.execute("SELECT pg_current_wal_lsn()")[0]
    command: list[Any] = [
        recvlogical_of(database.version),
        "--start",
        "--slot",
        slot.name,
        "--dbname",
        database.dsn,
    ]
    command += ["--file", path, "--endpos", end, "--no-loop"]
    for name, value in (slot.options | options).items():
        command += ["--option", f"{name}={value}"]
    # The settings of the session that decodes: those of the session that peeks.
    pins = " ".join(f"-c {name}={value}" for name, value in pg.PINNED_SETTINGS.items())
    environment = os.environ | {"PGOPTIONS": pins}
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=environment)
    return path


@pytest.mark.few_servers
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_file_has_the_messages_of_the_slot(database: pg.Database, tmp_path: Path, binary: bool) -> None:
    if binary and database.version < pg.FIRST_BINARY_VERSION:
        options: dict[str, str] = {}
    else:
        options = pg.all_options(database.version, binary=binary)
    with database.slot(options=options) as slot:
        slot.execute(*CHANGES)
        if database.version >= 14:
            slot.execute("SELECT pg_logical_emit_message(true, E'p\n', E'\n\n')")
        if database.version >= 11:
            slot.execute('TRUNCATE lines, "new\nline"')
        slot.execute("DROP TABLE lines", 'DROP TABLE "new\nline"', "DROP TYPE mood")
        expected = [data for _, data in slot.peek()]
        path = receive(database, slot, tmp_path / "changes", {})
    file = pgo.read_recvlogical(path)
    assert list(file) == expected
    assert len(file) == len(expected) > 15
    decoded = pgo.decode(file)
    if not binary:
        assert decoded.table("public.lines").column("t")[0].as_py() == "one\ntwo\r\n\n"
    assert decoded.rejects.num_rows == 0


def test_streamed_and_prepared_transactions(servers: pg.Servers, tmp_path: Path) -> None:
    versions = [version for version in servers if version >= 15]
    if not versions:
        pytest.skip(f"no PostgreSQL 15 or newer found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(versions)])
    try:
        options = pg.all_options(database.version) | {"proto_version": "4" if database.version >= 16 else "3"}
        with streaming(database, options, two_phase=True) as stream:
            for table in ("one", "two"):
                stream.create(table)
            stream.run(0, "BEGIN")
            stream.run(1, "BEGIN")
            for first in (1, 1001):
                stream.fill(0, "one", first)
                stream.run(0, f"SAVEPOINT s{first}")
                stream.fill(1, "two", first)
            stream.fill(0, "one", 2001)
            stream.run(0, "ROLLBACK TO s1001", "ALTER TABLE one ADD COLUMN n text", "COMMIT")
            stream.run(1, "PREPARE TRANSACTION E'g\nid'")
            stream.run(2, "INSERT INTO one VALUES (5000, E'\n', E'\n\n')")
            stream.run(1, "COMMIT PREPARED E'g\nid'")
            stream.flush()
            path = receive(database, stream.slot, tmp_path / "changes", {})
            file = pgo.read_recvlogical(path)
            tags = {payload[:1] for payload in file}
            assert tags >= {b"S", b"E", b"c", b"p", b"K", b"B"}
            decoded = pgo.decode(file, options=pgo.Options(transactions="committed"))
            for table in ("one", "two"):
                ((rows,),) = stream.slot.execute(f"SELECT count(*) FROM {table}")
                assert decoded.table(f"public.{table}").num_rows == rows
            assert decoded.rejects.num_rows == 0
    finally:
        database.drop()


def test_a_killed_program_leaves_a_file_that_says_so(servers: pg.Servers, tmp_path: Path) -> None:
    """The program is killed while it writes; the file goes on with what a second program appends, or ends."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(servers)])
    try:
        with database.slot() as slot:
            slot.execute("CREATE TABLE t (id int, t text)")
            slot.execute("INSERT INTO t SELECT n, repeat(E'x\n', 2000) FROM generate_series(1, 5000) AS n")
            path = tmp_path / "changes"
            command: list[Any] = [recvlogical_of(database.version), "--start", "--slot", slot.name]
            # It confirms nothing, or the slot would lack what a slow machine received before the kill.
            command += ["--dbname", database.dsn, "--file", path, "--status-interval", "0"]
            for name, value in slot.options.items():
                command += ["--option", f"{name}={value}"]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as program:
                deadline = time.monotonic() + 120
                while not path.exists() or path.stat().st_size < 1_000_000:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
                program.kill()
            # The walsender notices a little later that its client is gone.
            active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot.name}'"
            while slot.execute(active)[0][0]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            expected = [data for _, data in slot.peek()]
    finally:
        database.drop()
    found = list(pgo.read_recvlogical(path, truncated="drop"))
    # On a machine that is busy, the kill may come after the last message.
    assert 100 < len(found) <= len(expected)
    assert found == expected[: len(found)]
    if path.stat().st_size > ends(found)[-1]:
        # If the cut is behind a newline of a value, the end is found when it is read.
        with pytest.raises(pgo.DecodeError, match=r"ends within its (last|first) message"):
            list(pgo.read_recvlogical(path))


# ---- every stream --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", fixtures.FILES, ids=lambda path: path.stem)
def test_the_messages_that_servers_sent(path: Path, tmp_path: Path) -> None:
    payloads = [data for _, data in fixtures.read(path)]
    file = pgo.read_recvlogical(written(tmp_path / "changes", payloads))
    assert list(file) == payloads == list(file)
    assert [each for batch in file.batches() for each in batch.to_pylist()] == payloads


@pytest.mark.parametrize("seed", range(8))
def test_any_stream_and_any_cut(seed: int, tmp_path: Path) -> None:
    payloads = make_stream(RandomChoices(seed), 10).payloads
    path = written(tmp_path / "changes", payloads)
    assert list(pgo.read_recvlogical(path)) == payloads
    whole, places = path.read_bytes(), ends(payloads)
    for size in sorted({*range(1, min(len(whole), 100)), *places, *(place - 1 for place in places)}):
        path.write_bytes(whole[:size])
        complete = [payload for payload, end in zip(payloads, places, strict=True) if end <= size]
        assert list(pgo.read_recvlogical(path, truncated="drop")) == complete
        if size in places:
            assert list(pgo.read_recvlogical(path)) == complete
            continue
        with pytest.raises(pgo.DecodeError) as caught:
            list(pgo.read_recvlogical(path))
        assert caught.value.byte_offset == ([0, *places])[len(complete)]
        assert caught.value.seq == len(complete)


def test_a_file_is_a_sequence_of_bytes(tmp_path: Path) -> None:
    payloads = make_stream(RandomChoices(3), 20).payloads
    file = pgo.read_recvlogical(os.fspath(written(tmp_path / "changes", payloads)))
    assert len(file) == len(payloads)
    for place in (0, 3, -1, -len(payloads), len(payloads) - 1):
        assert file[place] == payloads[place]
    for part in (
        slice(2, 5),
        slice(None, 3),
        slice(2, None),
        slice(-3, None),
        slice(None, None, -1),
        slice(1, 9, 3),
    ):
        assert file[part] == payloads[part]
    for place in (len(payloads), -len(payloads) - 1):
        with pytest.raises(IndexError, match=f"has no message {place}"):
            file[place]
    assert repr(file) == f"<RecvlogicalFile {os.fspath(tmp_path / 'changes')!r}>"
    with (tmp_path / "changes").open("ab") as more:
        more.write(encode.encode_message(1, "p", b"x", transactional=False) + b"\n")
    assert len(file) == len(payloads) + 1
    tagged, _ = pgo.tag(file)
    assert tagged.num_rows >= len(payloads)


def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    spec = RelationSpec(1, "public", "t", (ColumnSpec("t", 25),))
    payloads = [encode.encode_relation(spec)]
    payloads += [encode.encode_insert(1, ["\n" * 50_000])] * 1000
    payloads += [encode.encode_insert(1, ["\n" * (3 * RECEIVED_BYTES)])]
    path = written(tmp_path / "changes", payloads)
    assert path.stat().st_size > 60_000_000
    tracemalloc.start()
    try:
        count = 0
        for batch in pgo.read_recvlogical(path).batches():
            count += len(batch)
        assert count == len(payloads)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
        tracemalloc.reset_peak()
        assert sum(1 for _ in itertools.islice(pgo.read_recvlogical(path), 900)) == 900
        assert tracemalloc.get_traced_memory()[1] < 6 * RECEIVED_BYTES
    finally:
        tracemalloc.stop()


# ---- sessions and blocks -------------------------------------------------------------------------------------------


def test_a_new_session_within_a_block(tmp_path: Path) -> None:
    """pg_recvlogical makes a new connection by itself, and goes on in the same file."""
    spec = RelationSpec(1, "public", "t", (ColumnSpec("id", 23),))
    block = [
        encode.encode_stream_start(9, True),
        encode.encode_relation(spec, xid=9),
        encode.encode_insert(1, ["1"], xid=9),
    ]
    plain = [encode.encode_begin(100, 0, 10), encode.encode_relation(spec), encode.encode_insert(1, ["2"])]
    message = [encode.encode_message("0/1B0D988", "prefix", b"now\n", transactional=False)]
    for then in (plain, message + plain, [*block, encode.encode_stream_stop(), *message, *plain]):
        payloads = block + then
        assert list(pgo.read_recvlogical(written(tmp_path / "changes", payloads))) == payloads


def test_a_file_that_begins_within_a_block(tmp_path: Path) -> None:
    spec = RelationSpec(1, "public", "t", (ColumnSpec("id", 23),))
    payloads = [
        encode.encode_relation(spec, xid=9),
        encode.encode_insert(1, ["1"], xid=9),
        encode.encode_stream_stop(),
    ]
    payloads += [encode.encode_stream_abort(9, 9), encode.encode_stream_abort(10, 10, 300, 0)]
    path = written(tmp_path / "changes", payloads)
    assert list(pgo.read_recvlogical(path, in_stream=True)) == payloads
    with pytest.raises(pgo.DecodeError, match="does not begin with a message of pgoutput"):
        pgo.read_recvlogical(path)


# ---- other files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty: pg_recvlogical has written no message to it yet"),
        (b"BEGIN 693\ntable public.t: INSERT: id[integer]:1\nCOMMIT 693\n", "text, as the plugin test_decoding writes it"),
        (b'{"change": []}\n', "JSON, as the plugin wal2json writes it"),
        (b"\\x420000000001505540000303c531e8df61000002d5\n", "text made of hex digits"),
        (b"\x1f\x8b\x08\0", "gzip compressed: decompress it first"),
        (b"hello world\n", r"does not begin with .* \(unknown message tag"),
        (b"\n", "does not begin with a message"),
        (b"C" + bytes(25) + b"C", r"does not begin with .* \(a newline was expected after the message\)"),
        (encode.encode_begin(1, 0, 7) + encode.encode_commit(1, 2, 0), r"\(a newline was expected after the message\)"),
        (b"w" + bytes(24) + encode.encode_begin(1, 0, 7), "does not begin with a message"),
        (b"Commit", "does not begin with a message of pgoutput"),
        (b"I\0\0\0\1N\0\1t\x7f\xff\xff\xff", "does not begin with a message of pgoutput"),
        (b"Roses are red", "ends within its first message, if this is one of pgoutput"),
    ],
)  # fmt: skip
def test_another_file_is_one_clear_error(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "changes"
    path.write_bytes(content)
    with pytest.raises(pgo.DecodeError, match=what) as caught:
        pgo.read_recvlogical(path)
    assert repr(os.fspath(path)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_and_no_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(pgo.DecodeError, match=r"is a Parquet file: .* pgoutput_fast\.segments"):
        pgo.read_recvlogical(tmp_path / "a.parquet")
    with pytest.raises(FileNotFoundError):
        pgo.read_recvlogical(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        pgo.read_recvlogical(tmp_path)
    with pytest.raises(ValueError, match="truncated must be 'error' or 'drop', not 'no'"):
        pgo.read_recvlogical(tmp_path, truncated="no")  # type: ignore[arg-type]


def test_damage_in_the_middle(tmp_path: Path) -> None:
    payloads = [encode.encode_begin(1, 0, 7), encode.encode_commit(1, 2, 0)] * 50
    whole = bytearray(b"".join(payload + b"\n" for payload in payloads))
    place = ends(payloads)[39]
    whole[place] = ord("x")
    path = tmp_path / "changes"
    path.write_bytes(whole)
    file = pgo.read_recvlogical(path)
    with pytest.raises(pgo.DecodeError) as caught:
        list(file)
    problem = caught.value
    assert (problem.seq, problem.byte_offset) == (40, place)
    assert re.search(r"message 40, byte \d+: '.*changes' is damaged: unknown message tag", str(problem))
    # What is before the damage can be read.
    assert list(itertools.islice(file, 40)) == file[:40] == payloads[:40]
    (batch,) = itertools.islice(file.batches(), 1)
    assert batch.to_pylist() == payloads[:40]


def test_the_page_reads_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (
        (DOCS / "decoding.md").read_text().partition("## Files of pg_recvlogical\n")[2].partition("\n## ")[0]
    )
    _, code = re.findall(r"(?:^    .*\n)+", page, re.MULTILINE)
    payloads = make_stream(RandomChoices(1), 10).payloads
    written(tmp_path / "changes", payloads)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"pgo": pgo}
    exec(textwrap.dedent(code), names)
    assert list(names["payloads"]) == payloads
    assert names["decoded"].transactions.num_rows > 0
