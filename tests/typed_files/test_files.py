"""Typed files: what committed, once, made of segments alone, and readable without this package."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, CaptureError, Limits, Retention, Snapshot, retain
from pgoutput_fast.capture.retention import retain_typed
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.schema.plain import plain_schema, to_types
from pgoutput_fast.schema.tables import REJECTS_SCHEMA
from pgoutput_fast.segments import Source, list_segments, open_segment, write_segment
from pgoutput_fast.segments import committed as released
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.typed_files import files as typed
from pgoutput_fast.typed_files.files import TypedFiles
from pgoutput_fast.typed_files.progress import Progress, write_progress
from support import pg
from support.capturing import Writers, committed, now, slot, streaming_dsn
from support.forms import and_in_ci, and_long
from support.oracle import plain_records
from support.streams import ENRICHED, RandomChoices, Stream, make_stream

__all__ = ["slot"]

SOURCE = Source("1", "shop", "slot")
QUARANTINE = pgo.Options(on_error="quarantine")
ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))


def _typed(directory: Path) -> dict[str, pa.Table]:
    """{version as hex: all rows of its files}; of several tables."""
    found: dict[str, list[pa.Table]] = {}
    for file in sorted((directory / "typed").glob("*/*/*.parquet")):
        found.setdefault(file.parent.name, []).append(pq.read_table(file, partitioning=None))
    return {version: pa.concat_tables(tables) for version, tables in found.items()}


def _plainly(changes: list[Any]) -> dict[str, pa.Table]:
    """What was decoded, in the same form."""
    found: dict[str, list[pa.Table]] = {}
    for each in changes:
        table = pa.Table.from_batches([each.batch])
        version = f"{each.relation.version % 2**64:016x}"
        found.setdefault(version, []).append(to_types(table, plain_schema(table.schema)))
    return {version: pa.concat_tables(tables) for version, tables in found.items()}


def _same(got: dict[str, pa.Table], expected: dict[str, pa.Table]) -> None:
    assert got.keys() == expected.keys()
    for version, table in expected.items():
        assert got[version].schema.equals(table.schema)
        assert sorted(map(repr, plain_records(got[version]))) == sorted(map(repr, plain_records(table)))


def _cut(directory: Path, stream: Stream, cuts: set[int]) -> list[Path]:
    """Segments of a stream, cut there and where a session starts."""
    directory.mkdir()
    paths = []
    state = pgo.StreamState(catalog=ENRICHED)
    ends = sorted({*cuts, *stream.sessions, len(stream.payloads)} - {0})
    for begin, end in zip([0, *ends], ends, strict=False):
        if begin in stream.sessions:
            decoder = pgo.Decoder(state=state)
            decoder.start_session()
            state = decoder.state
        tagged, state = pgo.tag(stream.payloads[begin:end], state, lsn=stream.lsns[begin:end])
        if tagged.num_rows:
            path = write_segment(directory, tagged, state, source=SOURCE)
            assert isinstance(path, Path)
            paths.append(path)
    return paths


@pytest.mark.parametrize("seed", and_long(and_in_ci(range(4), range(4, 8)), range(8, 20)))
def test_they_are_the_committed_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Of random streams, cut anywhere and made by processes that end anywhere."""
    dice = random.Random(seed)
    # So that some are given bit by bit, and wait in files.
    monkeypatch.setattr(released, "_PIECE_ROWS", dice.choice([1, 5, 1 << 16]))
    options = pgo.Options(on_error="quarantine", memory_limit=dice.choice([1, 1 << 20]))
    stream = make_stream(RandomChoices(seed), steps=40)
    size = len(stream.payloads)
    paths = _cut(tmp_path / "all", stream, {dice.randrange(1, size) for _ in range(dice.choice([2, 10]))})
    directory = tmp_path / "grown"
    directory.mkdir()
    store = open_store(directory)
    made = TypedFiles(store, options)
    for path in paths:
        shutil.copy2(path, directory)
        state, before = open_segment(path).state, made._last_seq
        progress = directory / "typed" / "_progress.json"
        saved = progress.read_bytes() if progress.exists() else None
        if dice.random() < 0.5:
            made.catch_up()
        else:
            made.follow(path.name, pgo.segments.read_segment(path), state, before)
        if dice.random() < 0.4:
            # It died before it said so; or in the middle: then some files are not there.
            progress.unlink() if saved is None else progress.write_bytes(saved)
            for file in (directory / "typed").rglob(path.name):
                if dice.random() < 0.5:
                    file.unlink()
            made = TypedFiles(store, options)
            made.catch_up()
        elif dice.random() < 0.4:
            made = TypedFiles(store, options)
            made.catch_up()
        # What is void does not wait for ever.
        assert made._committed._reorder_buffer.waiting.keys() <= set(state.open_txns)
    decoder = pgo.Decoder(pgo.Options(transactions="committed", on_error="quarantine"), catalog=ENRICHED)
    changes: list[Any] = []
    rejects = 0
    ends = sorted({*stream.sessions, size})
    for begin, end in zip([0, *ends], ends, strict=False):
        if begin in stream.sessions:
            decoder.start_session()
        if begin < end:
            out = decoder.decode(stream.payloads[begin:end], lsn=stream.lsns[begin:end])
            changes += out.changes
            rejects += out.rejects.num_rows
    _same(_typed(directory), _plainly(changes))
    found = [pq.read_table(file) for file in (directory / "typed" / "_rejects").glob("*.parquet")]
    assert sum(table.num_rows for table in found) == rejects
    assert not list((directory / "typed").rglob(".*"))


def _segment(directory: Path, state: pgo.StreamState | None, *parts: list[bytes]) -> pgo.StreamState:
    tagged, state = pgo.tag([message for part in parts for message in part], state)
    write_segment(directory, tagged, state, source=SOURCE)
    return state


def test_where_they_lie(tmp_path: Path) -> None:
    writer, wal = Writer(), []
    names = [
        ("public", "orders"),
        ("so.called", "a/b%c=d"),
        ("_x", "."),
        ("é" * 31, "ü" * 31),
        ("public", "~"),
    ]
    for n, (namespace, name) in enumerate(names):
        spec = RelationSpec(100 + n, namespace, name, (ColumnSpec("id", 23, key=True),))
        wal += writer.begin(n + 1, 100 * n + 100, 0) + writer.change(spec, "insert", new=[str(n)])
        wal += writer.commit(100 * n + 100, 100 * n + 108, 0)
    _segment(tmp_path, None, wal)
    TypedFiles(open_store(tmp_path), QUARANTINE).catch_up()
    tables = {path.name: path for path in (tmp_path / "typed").iterdir() if path.is_dir()}
    digest = hashlib.sha256(("é" * 31 + "\0" + "ü" * 31).encode()).hexdigest()
    long = "%C3%A9" * 22 + f"%C3~{digest}"
    assert set(tables) == {"public.orders", "so%2Ecalled.a%2Fb%25c%3Dd", "%5Fx.%2E", long, "public.%7E"}
    for n, path in enumerate(
        [tables["public.orders"], tables["so%2Ecalled.a%2Fb%25c%3Dd"], tables["%5Fx.%2E"]]
    ):
        (file,) = path.glob("*/*.parquet")
        assert file.name == f"{0:020}-{4 * len(names) - 1:020}.parquet"
        table = pq.read_table(file, partitioning=None)
        assert table.column("id").to_pylist() == [n]
        assert table.schema.metadata[b"pg.version"].decode() == str(
            int.from_bytes(bytes.fromhex(file.parent.name), "big", signed=True)
        )
    # Whoever reads the segments does not meet them.
    assert len(list_segments(tmp_path)) == 1


def test_values_that_parquet_or_others_lack(tmp_path: Path) -> None:
    kinds = {"at": 1083, "spent": 1186, "ats": 1183, "u": 2950, "during": 3910, "d": 1082}
    spec = RelationSpec(9, "public", "every", tuple(ColumnSpec(name, oid) for name, oid in kinds.items()))
    good = [
        "01:02:03.5",
        "1 mon -2 days",
        "{23:59:59,NULL}",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        '["2020-01-01 00:00:00+00",)',
        "2020-01-01",
    ]
    bad = ["24:00:00", "00:00:01", "{24:00:00}", None, '["2020-01-01 00:00:00+00",infinity)', "infinity"]
    writer = Writer()
    wal = (
        writer.begin(1, 100, 0)
        + writer.change(spec, "insert", new=good)
        + writer.change(spec, "insert", new=bad)
    )
    wal += writer.commit(100, 108, 0)
    _segment(tmp_path, None, wal)
    TypedFiles(open_store(tmp_path), QUARANTINE).catch_up()
    (table,) = _typed(tmp_path).values()
    first, second = table.select(list(kinds)).to_pylist()
    assert (first["at"], first["spent"], first["ats"]) == (
        "01:02:03.500000",
        "P1M-2D",
        ["23:59:59.000000", None],
    )
    assert second["at"] is None
    assert second["ats"] == [None]
    assert table.column("_unrepresentable").to_pylist() == [None, ["at", "ats", "during", "d"]]
    (rejects,) = (tmp_path / "typed" / "_rejects").glob("*.parquet")
    assert pq.read_table(rejects).schema.equals(REJECTS_SCHEMA)
    raw = pq.read_table(rejects).column("raw").to_pylist()
    assert raw == [b"24:00:00", b"{24:00:00}", b'["2020-01-01 00:00:00+00",infinity)', b"infinity"]


def _commit(writer: Writer, xid: int, *ids: int) -> list[bytes]:
    wal = writer.begin(xid, 100 * xid, 0)
    for each in ids:
        wal += writer.change(ORDERS, "insert", new=[str(each), "x"])
    return wal + writer.commit(100 * xid, 100 * xid + 8, 0)


def test_missing_segments_and_damaged_progress_are_errors(tmp_path: Path) -> None:
    """Retention waits for typed files; what is gone nevertheless, or is not theirs, is an error and no gap."""
    writer, state = Writer(), None
    for n in range(4):
        state = _segment(tmp_path, state, _commit(writer, n + 1, n))
    store = open_store(tmp_path)
    names = [segment.path.name for segment in list_segments(tmp_path)]
    aside = tmp_path / "aside"
    aside.mkdir()
    for name in names[2:]:
        (tmp_path / name).rename(aside / name)
    TypedFiles(store, QUARANTINE).catch_up()
    for name in names[2:]:
        (aside / name).rename(tmp_path / name)
    assert [each.name for each in retain(tmp_path, older_than=0)] == names[:1]
    for name in names[1:3]:
        (tmp_path / name).rename(aside / name)
    with pytest.raises(
        ValueError, match=r"segments begin at message .* the files lack what committed in between"
    ):
        TypedFiles(store, QUARANTINE).catch_up()
    (aside / names[2]).rename(tmp_path / names[2])
    TypedFiles(store, QUARANTINE).catch_up()
    (table,) = _typed(tmp_path).values()
    assert table.column("id").to_pylist() == [0, 1, 2, 3]
    files = list((tmp_path / "typed").rglob("0*.parquet"))
    now = time.time()
    for file in files[:2]:
        os.utime(file, (now, now - 3600))
    assert sorted(map(str, retain_typed(tmp_path, older_than=timedelta(minutes=1), dry_run=True))) == sorted(
        map(str, files[:2])
    )
    assert len(retain_typed(tmp_path, older_than=60)) == 2
    TypedFiles(store, QUARANTINE).catch_up()
    assert len(list((tmp_path / "typed").rglob("0*.parquet"))) == 2
    for name in names[2:]:
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match="belong to another capture"):
        TypedFiles(store, QUARANTINE).catch_up()
    (tmp_path / "typed" / "_progress.json").write_text("{")
    with pytest.raises(ValueError, match=r"_progress\.json is damaged: remove typed/"):
        TypedFiles(store, QUARANTINE).catch_up()


def test_a_large_transaction_is_given_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed over many segments, with a part that is rolled back; small ones between."""
    monkeypatch.setattr(released, "_PIECE_ROWS", 500)
    pieces: list[int] = []
    decode = pgo.decode_tagged

    def counted(batch: pa.RecordBatch, *arguments: Any) -> Any:
        pieces.append(batch.num_rows)
        return decode(batch, *arguments)

    monkeypatch.setattr(typed, "decode_tagged", counted)
    writer, state = Writer(4, streaming="on"), None
    for n in range(10):
        block = writer.stream_start(900)
        for k in range(400):
            block += writer.change(ORDERS, "insert", new=[str(1000 * n + k), "x" * 50], xid=900 + k % 2)
        block += writer.stream_stop()
        state = _segment(tmp_path, state, block, _commit(writer, n + 1, -n))
    state = _segment(
        tmp_path,
        state,
        _commit(writer, 50, -50),
        writer.stream_abort(900, 901),
        writer.stream_commit(900, 6000, 6008, 0),
        _commit(writer, 70, -70),
    )
    spill = tmp_path / "spill"
    TypedFiles(open_store(tmp_path), pgo.Options(memory_limit=50_000, spill_directory=str(spill))).catch_up()
    assert max(pieces) <= 1000
    files = sorted((tmp_path / "typed").rglob("0*.parquet"))
    assert len(files) == 11
    last = pq.read_table(files[-1], partitioning=None)
    assert last.column("id").to_pylist() == [
        -50,
        *(1000 * n + k for n in range(10) for k in range(0, 400, 2)),
        -70,
    ]
    assert set(last.column("_commit_lsn").to_pylist()) == {5000, 6000, 7000}
    assert last.column("_commit_lsn").null_count == 0


# ---- with servers ------------------------------------------------------------------------------------------------


@pytest.mark.few_versions
def test_with_a_capture(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Exactly what the segments say was committed; a failure is said, harms no segment, and is made good later."""
    limits = Limits(rows=200)
    dsn = streaming_dsn(database)
    database.execute("INSERT INTO counted SELECT g, 1, repeat('x', 500) FROM generate_series(1, 700) g")
    capture = Capture(dsn, slot, ["captured"], tmp_path, limits=limits, typed=True)
    capture.run(until_lsn=now(database))
    _same(_typed(tmp_path), _plainly(committed(tmp_path).changes))
    database.execute(
        "ALTER TABLE counted ADD more numeric(5,1)", "UPDATE counted SET n = n + 1, more = id % 7"
    )
    capture.run(until_lsn=now(database))
    assert len(_typed(tmp_path)) == 2
    _same(_typed(tmp_path), _plainly(committed(tmp_path).changes))
    # Something stands in the way.
    shutil.move(tmp_path / "typed" / "public.counted", tmp_path / "aside")
    (tmp_path / "typed" / "public.counted").write_text("")
    database.execute("UPDATE counted SET n = n + 1 WHERE id < 300")
    segments = len(list_segments(tmp_path))
    with pytest.raises(
        CaptureError, match=r"segments in .* are good, but the capture cannot make typed files of them"
    ):
        capture.run(until_lsn=now(database))
    assert len(list_segments(tmp_path)) > segments
    with pytest.raises(CaptureError, match="Repair this and start the capture again"):
        capture.run(until_lsn=now(database))
    Capture(dsn, slot, ["captured"], tmp_path, limits=limits).run(until_lsn=now(database))
    (tmp_path / "typed" / "public.counted").unlink()
    shutil.move(tmp_path / "aside", tmp_path / "typed" / "public.counted")
    kept = Retention(older_than=0, typed_older_than=3600)
    capture = Capture(dsn, slot, ["captured"], tmp_path, limits=limits, typed=True, retention=kept)
    expected = _plainly(committed(tmp_path).changes)
    capture.run(until_lsn=now(database))
    _same(_typed(tmp_path), expected)
    # Segments go when the next ones come; typed files have a time of their own. What a killed process left goes, too.
    left = [
        tmp_path / f".{'0' * 20}-{'0' * 20}.parquet.{'0f' * 8}",
        tmp_path / "typed" / f".x.parquet.{'ab' * 8}",
    ]
    left.append(tmp_path / "typed" / "_spill" / f"pgoutput-fast-{'0f' * 8}-0.arrow")
    others = tmp_path / "typed" / "_spill" / "orders.arrow"
    others.parent.mkdir(exist_ok=True)
    for path in (*left, others):
        path.write_bytes(b"unfinished")
    database.execute("UPDATE counted SET n = n + 1 WHERE id < 100")
    capture.run(until_lsn=now(database))
    assert len(list_segments(tmp_path)) <= 2
    assert not any(path.exists() for path in left)
    assert others.exists(), "it has not the name of a spill file"
    columns = ["_commit_lsn", "_seq", "_change_type", "id", "n"]
    rows = pa.concat_tables(table.select(columns) for table in _typed(tmp_path).values())
    rows = rows.sort_by([("_commit_lsn", "ascending"), ("_seq", "ascending")]).to_pylist()
    last = {row["id"]: row["n"] for row in rows if row["_change_type"] != "update_preimage"}
    assert last == dict(database.execute("SELECT id, n FROM counted"))


def test_modes(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Files are as the umask has them, or less; what has chances in its name, too."""
    if database.version != max(pg.installations()):
        pytest.skip("tried on the newest server")
    database.execute("INSERT INTO counted VALUES (1, 1)")
    before = os.umask(0o022)
    try:
        Capture(database.dsn, slot, ["captured"], tmp_path / "a", typed=True).run(until_lsn=now(database))
        database.execute("UPDATE counted SET n = 2")
        Capture(database.dsn, slot, ["captured"], tmp_path / "a", typed=True, file_mode=0o640).run(
            until_lsn=now(database)
        )
        with Snapshot(database.dsn, ["captured"]) as snapshot:
            snapshot.load_to(tmp_path / "b" / "c")
        with Snapshot(database.dsn, ["captured"]) as snapshot:
            snapshot.load_to(tmp_path / "b" / "d", file_mode=0o600)
            with pytest.raises(ValueError, match="such as 0o640"):
                snapshot.load_to(tmp_path / "b" / "e", file_mode=640)
    finally:
        os.umask(before)

    def modes(*patterns: str) -> list[set[str]]:
        return [{oct(path.stat().st_mode & 0o777) for path in tmp_path.glob(each)} for each in patterns]

    first, second = sorted(path.name for path in (tmp_path / "a").glob("*.parquet"))
    assert modes("a", f"a/{first}", f"a/typed/*/*/{first}") == [{"0o755"}, {"0o644"}, {"0o644"}]
    assert modes(f"a/{second}", f"a/typed/*/*/{second}", "a/typed/_progress.json") == [{"0o640"}] * 3
    assert modes("b/c", "b/c/*", "b/c/*/*") == [{"0o755"}, {"0o755", "0o644"}, {"0o644"}]
    assert modes("b", "b/d", "b/d/p*", "b/d/*/*") == [{"0o755"}, {"0o700"}, {"0o700"}, {"0o600"}]


_PROCESS = """
import sys
from pgoutput_fast.capture import Capture, Limits
dsn, slot, directory = sys.argv[1:]
Capture(dsn, slot, ["captured"], directory, limits=Limits(seconds=0.05, rows=3000), typed=True).run()
"""


@pytest.mark.one_version
def test_killed_at_random_moments(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """The full form takes PGOUTPUT_FAST_KILLS=50."""
    kills = int(os.environ.get("PGOUTPUT_FAST_KILLS", "2"))
    if kills == 2 and database.version not in (10, 18):
        pytest.skip("not on every server in the short form")
    dice = random.Random(database.version)
    arguments = [sys.executable, "-c", _PROCESS, streaming_dsn(database), slot, str(tmp_path)]
    with Writers(database):
        for _ in range(kills):
            before = len(list(tmp_path.rglob("0*.parquet")))
            process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
            deadline = time.monotonic() + 240
            while (
                process.poll() is None
                and time.monotonic() < deadline
                and len(list(tmp_path.rglob("0*.parquet"))) < before + dice.randrange(1, 6)
            ):
                time.sleep(0.002)
            time.sleep(dice.random() * 0.1)
            process.send_signal(signal.SIGKILL)
            _, said = process.communicate()
            assert process.returncode == -signal.SIGKILL, said
    capture = Capture(streaming_dsn(database), slot, ["captured"], tmp_path, typed=True)
    capture.run(until_lsn=now(database))
    _same(_typed(tmp_path), _plainly(committed(tmp_path).changes))
    rows = pa.concat_tables(_typed(tmp_path).values()).to_pylist()
    seen = Counter(row["id"] for row in rows if row["_change_type"] in ("insert", "update_postimage"))
    assert seen == dict(database.execute("SELECT id, n FROM counted"))


def test_spark_reads_them_as_they_are(tmp_path: Path, spark: Any) -> None:
    writer, state = Writer(), None
    wider = RelationSpec(
        16401,
        "public",
        "orders",
        (*ORDERS.columns, ColumnSpec("at", 1083), ColumnSpec("p", 1700, typmod=(5 << 16 | 1) + 4)),
    )
    for n in range(3):
        state = _segment(tmp_path, state, _commit(writer, n + 1, n))
    more = (
        writer.begin(9, 900, 0)
        + writer.change(wider, "insert", new=["9", "y", "01:02:03", "1.5"])
        + writer.commit(900, 908, 0)
    )
    _segment(tmp_path, state, more)
    TypedFiles(open_store(tmp_path), QUARANTINE).catch_up()
    reader = spark.read.option("recursiveFileLookup", True).option("mergeSchema", True)
    rows = reader.parquet(str(tmp_path / "typed" / "public.orders")).orderBy("_commit_lsn").collect()
    assert [(row.id, row.note, row.at, str(row.p)) for row in rows] == [
        (0, "x", None, "None"), (1, "x", None, "None"), (2, "x", None, "None"), (9, "y", "01:02:03.000000", "1.5"),
    ]  # fmt: skip
    # Nor do they get into the segments' way.
    assert spark.read.parquet(str(tmp_path)).count() == 3 * 4 + 4 - 2


def test_without_typed_files_again_retention_says_why_it_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    kept = Retention(older_than=timedelta(days=1))

    def said(retention: Retention | None) -> list[str]:
        caplog.clear()
        with SegmentDirectory(tmp_path, retention).owned():
            pass
        return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]

    assert said(kept) == []
    write_progress(store, Progress(41, 42))
    assert said(None) == said(Retention(typed_older_than=60)) == []
    (message,) = said(kept)
    assert "end at message 41" in message
    assert f"remove {tmp_path}/typed/_progress.json" in message
    (tmp_path / "typed" / "_progress.json").unlink()
    assert said(kept) == []
