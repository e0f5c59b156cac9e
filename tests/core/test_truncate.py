"""Truncates of many relations: what they cost, how they are stored, and that any of their rows stands for itself."""

from __future__ import annotations

import contextlib
import itertools
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast.capture import Capture, Limits, create_slot, drop_slot, recorder
from pgoutput_fast.capture.errors import UnstorableError
from pgoutput_fast.capture.recorder import Recorder
from pgoutput_fast.capture.segment_directory import SegmentDirectory
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.postgres.walsender import Received
from pgoutput_fast.segments import Source, list_segments, read_segment
from pgoutput_fast.transactions import reorder_buffer as reorder_buffer
from pgoutput_fast.transactions import view as transactions
from support import pg
from support.capturing import now

BEGIN, COMMIT = encode.encode_begin(100, 0, 7), encode.encode_commit(100, 108, 0)
FIRST = 20_000


def relation(k: int, xid: int | None = None) -> bytes:
    spec = RelationSpec(FIRST + k, "public", f"t{k}", (ColumnSpec("id", 23),))
    return encode.encode_relation(spec, xid=xid)


def oids(count: int) -> list[int]:
    return list(range(FIRST, FIRST + count))


def emptied(out: pgo.Decoded) -> list[int]:
    """Oids of the relations that have a row of a Truncate."""
    return sorted(
        each.relation.oid
        for each in out.changes
        for kind in each.batch.column("_change_type").to_pylist()
        if kind == "truncate"
    )


@pytest.mark.parametrize("repeated", [False, True])
def test_it_is_stored_once(repeated: bool) -> None:
    sizes = []
    for count in (1_000, 4_000):
        _, state = pgo.tag([BEGIN, *map(relation, range(count))])
        named = [FIRST] * count if repeated else oids(count)
        tagged, _ = pgo.tag([encode.encode_truncate(named), COMMIT], state)
        sizes.append(tagged.nbytes)
        out = pgo.decode_tagged(tagged, state.catalog)
        assert emptied(out) == named
        assert out.truncates.column("relations").to_pylist() == [named]
    assert sizes[1] < 4.1 * sizes[0]


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("named", [[0], [0, 1, 2], [1, 1], [2, 0, 2, 1]])
def test_each_row_stands_for_itself(named: list[int], in_stream: bool) -> None:
    named = [FIRST + k for k in named]
    xid = 9 if in_stream else None
    wal = [encode.encode_stream_start(9, True)] if in_stream else [BEGIN]
    wal += [relation(k, xid) for k in range(3)]
    wal.append(encode.encode_truncate(named, cascade=True, restart_identity=True, xid=xid))
    tagged, state = pgo.tag(wal, lsn=[5] * len(wal))
    rows = tagged.slice(4)
    assert rows.column("relation").to_pylist() == named
    assert rows.column("payload")[0].as_py() == wal[4]
    alone = [encode.encode_truncate([oid], cascade=True, restart_identity=True, xid=xid) for oid in named]
    assert rows.column("payload").to_pylist()[1:] == alone[1:]
    sent = {"seq": 4, "txn": 0, "cascade": True, "restart_identity": True}
    for count in range(1, len(named) + 1):
        for chosen in itertools.permutations(range(len(named)), count):
            out = pgo.decode_tagged(rows.take(pa.array(chosen)), state.catalog)
            assert emptied(out) == sorted(named[k] for k in chosen)
            for each in out.changes:
                assert each.batch.column("_seq").to_pylist() == [4] * each.batch.num_rows
                assert each.batch.column("_xid")[0].as_py() == (9 if in_stream else 7)
            # The row that has the message tells all; without it each row tells its own.
            told = named if 0 in chosen else list(dict.fromkeys(named[k] for k in chosen))
            assert out.truncates.to_pylist() == [{**sent, "relations": told}]
    # Earlier versions stored the message in each row.
    whole = rows.set_column(11, "payload", pa.array([wal[4]] * len(named), pa.binary()))
    out = pgo.decode_tagged(whole, state.catalog)
    assert emptied(out) == sorted(named)
    assert out.truncates.to_pylist() == [{**sent, "relations": named}]


def test_rejects_have_it_once() -> None:
    """Its relations that are not known are told one by one."""
    sizes = []
    for count in (500, 2_000):
        message = encode.encode_truncate(oids(count), restart_identity=True)
        out = pgo.decode([BEGIN, message, COMMIT], options=pgo.Options(on_error="quarantine"))
        raws = out.rejects.column("raw").to_pylist()
        assert raws[0] == message
        assert raws[1:] == [encode.encode_truncate([oid], restart_identity=True) for oid in oids(count)[1:]]
        assert out.rejects.column("byte_offset").to_pylist() == [6 + 4 * k for k in range(count)]
        sizes.append(out.rejects.nbytes)
    assert sizes[1] < 4.1 * sizes[0]


def test_pieces_of_the_committed_view_do_not_part_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither in files nor on their way out: two records of it would be two Truncates."""
    monkeypatch.setattr(reorder_buffer, "_BATCH_ROWS", 4)
    monkeypatch.setattr(transactions, "_PIECE_ROWS", 4)
    stream = [encode.encode_stream_start(9, True), *(relation(k, 9) for k in range(10))]
    stream += [encode.encode_insert(FIRST, ["1"], xid=9)] * 3
    stream += [encode.encode_truncate(oids(10), xid=9), encode.encode_truncate(oids(7), xid=9)]
    stream += [encode.encode_insert(FIRST, ["1"], xid=9)] * 3
    options = pgo.Options(transactions="committed", memory_limit=1, spill_directory=str(tmp_path))
    with pgo.Decoder(options) as decoder:
        decoder.decode([*stream, encode.encode_stream_stop()])
        outs = list(decoder.stream([[encode.encode_stream_commit(9, 200, 208, 0)]]))
    assert len(outs) > 3
    assert [row for out in outs for row in out.truncates.column("relations").to_pylist()] == [
        oids(10),
        oids(7),
    ]
    assert sorted(oid for out in outs for oid in emptied(out)) == sorted(oids(10) + oids(7))


def received(payloads: list[bytes]) -> Received:
    lsns = [1000 + k for k in range(len(payloads))]
    return Received(pa.array(payloads, pa.binary()), pa.array(lsns, pa.int64()), sum(map(len, payloads)))


@pytest.mark.slow
def test_more_relations_than_once_could_be_stored(tmp_path: Path) -> None:
    """Of 23,300 the payloads alone were more than 2 GiB, so that a capture never went beyond such a Truncate."""
    count = 25_000
    target = SegmentDirectory(tmp_path)
    with target.owned(), Recorder(target, Source("1", "shop", "slot"), None, 0, Limits()) as writing:
        for batch in (
            [BEGIN, *map(relation, range(count))],
            [encode.encode_truncate(oids(count)), COMMIT],
        ):
            assert writing.offer(received(batch), 10)
        writing.make_durable()
    (segment,) = list_segments(tmp_path)
    rows = read_segment(segment.path)
    assert rows.num_rows == 2 * count + 3  # one says that a session began
    assert rows.nbytes < 10_000_000
    (batch,) = read_segment(segment.path, relations=[FIRST + 20_001]).combine_chunks().to_batches()
    out = pgo.decode_tagged(batch, segment.catalog)
    assert emptied(out) == [FIRST + 20_001]
    truncates = rows.filter(pc.equal(rows["kind"], ord("T")))
    out = pgo.decode_tagged(truncates.combine_chunks(), segment.catalog)
    assert out.truncates.column("relations").to_pylist() == [oids(count)]
    assert emptied(out) == oids(count)


@pytest.mark.parametrize("together", [True, False])
def test_a_message_that_no_segment_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """What came before it is durable, and the error says which one it is."""
    monkeypatch.setattr(recorder, "MOST_BYTES", 20_000)
    before = [BEGIN, relation(0), encode.encode_insert(FIRST, ["1"]), *map(relation, range(1, 20))]
    large = [encode.encode_insert(FIRST, ["x" * 30_000]), COMMIT]
    target = SegmentDirectory(tmp_path)
    writing = Recorder(target, Source("1", "shop", "slot"), None, 0, Limits())
    with target.owned(), contextlib.suppress(UnstorableError), writing:
        for batch in [[*before, *large]] if together else [before, large]:
            assert writing.offer(received(batch), 10)
        writing.make_durable()
    with pytest.raises(UnstorableError, match=r"^message 22, LSN 0/\w+: .* tagged rows have"):
        writing.check()
    (segment,) = list_segments(tmp_path)
    assert (segment.first_seq, segment.last_seq) == (0, 21)


def test_many_messages_have_room_in_several_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_BYTES", 20_000)
    inserts = [encode.encode_insert(FIRST, ["x" * 5_000])] * 20
    target = SegmentDirectory(tmp_path)
    with target.owned(), Recorder(target, Source("1", "shop", "slot"), None, 0, Limits()) as writing:
        assert writing.offer(received([BEGIN, relation(0), *inserts, COMMIT]), 10)
        writing.make_durable()
        assert writing.progress.stored == 23
    segments = list_segments(tmp_path)
    assert len(segments) > 4
    rows = [seq for each in segments for seq in read_segment(each.path)["seq"].to_pylist()]
    assert rows == [0, *range(23)]  # the first says that a session began
    assert [each.state.next_seq for each in segments] == [each.last_seq + 1 for each in segments]


def test_a_segment_that_is_cut_for_want_of_room_has_its_own_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that behind the batch for which there was no space: after a crash that batch would have come already."""
    monkeypatch.setattr(recorder, "MOST_BYTES", 20_000)
    first, second = (
        [encode.encode_message(lsn, "p", b"x" * 15_000, transactional=False)] for lsn in (100, 200)
    )
    source, target = Source("1", "shop", "slot"), SegmentDirectory(tmp_path)

    def write(wal: list[list[bytes]]) -> None:
        newest = target.newest()
        state = None if newest is None else newest.state
        with Recorder(target, source, state, 0, Limits()) as writing:
            for batch in wal:
                assert writing.offer(received(batch), 10)

    with target.owned():
        write([first, second])
        segments = list_segments(tmp_path)
        assert [each.state.next_seq for each in segments] == [each.last_seq + 1 for each in segments]
        Path(segments[-1].path).unlink()  # as if it had been killed in between
        write([second])
    assert len(list_segments(tmp_path)) == 2


@pytest.mark.slow
def test_a_server_truncates_partitions(
    database: pg.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """2,000 of them; and where there is no space for that, the capture stops and does not connect again and again."""
    if database.version != max(pg.installations()):
        pytest.skip("what is done with it is the same on every server")
    caplog.set_level(logging.INFO)
    database.execute(
        "CREATE TABLE parted (id int) PARTITION BY LIST (id)",
        "DO $$BEGIN FOR k IN 1..2000 LOOP "
        "EXECUTE format('CREATE TABLE part_%s PARTITION OF parted FOR VALUES IN (%s)', k, k); END LOOP; END$$",
        "CREATE PUBLICATION parted FOR TABLE parted",
    )
    slots = [f"{database.name}_{name}" for name in ("small", "large")]
    for slot in slots:
        create_slot(database.dsn, slot)
    try:
        database.execute("INSERT INTO parted VALUES (7)", "TRUNCATE parted", "INSERT INTO parted VALUES (8)")
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "MOST_BYTES", 100_000)
            small = Capture(database.dsn, slots[0], ["parted"], tmp_path / "small")
            for _ in range(2):
                with pytest.raises(
                    UnstorableError, match=r"^message \d+, LSN \w+/\w+: .*Another try does not help"
                ):
                    small.run(until_lsn=now(database))
        # No partition has a key, which is said of a few of them.
        said = [each.getMessage() for each in caplog.records if "no key" in each.getMessage()]
        assert len(said) < 20
        assert any(" more: there is no key" in each for each in said)
        kinds = [
            kind
            for each in list_segments(tmp_path / "small")
            for kind in read_segment(each.path)["kind"].to_pylist()
        ]
        assert ord("I") in kinds
        assert ord("T") not in kinds
        Capture(database.dsn, slots[1], ["parted"], tmp_path / "large").run(until_lsn=now(database))
    finally:
        for slot in slots:
            drop_slot(database.dsn, slot)
    segments = list_segments(tmp_path / "large")
    tables = [read_segment(each.path) for each in segments]
    assert sum(table.nbytes for table in tables) < 2_000_000
    outs = [pgo.decode_tagged(table.combine_chunks(), segments[-1].catalog) for table in tables]
    (relations,) = [row for out in outs for row in out.truncates.column("relations").to_pylist()]
    assert len(set(relations)) == len(relations) == 2_000
    assert [oid for out in outs for oid in emptied(out)] == sorted(relations)
