"""A COPY's rows are what inserts of the same cells decode to, however the stream is cut; damaged ones are errors."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.every_type import Cells
from cells.nested import EVERY, TYPES
from pgoutput_fast._core.copy.table_rows import CopyRows
from support.copying import (
    COMMIT_LSN,
    METADATA,
    SIGNATURE,
    by_messages,
    check_mutated,
    copied,
    copied_row,
    decoded,
    relation_of,
    same_columns,
    same_rejects,
)

SIMPLE = relation_of(
    pgo.Column("id", 23, key=True), pgo.Column("v", 25), pgo.Column("n", 1700, (10 << 16 | 2) + 4)
)


def simple_rows(count: int) -> list[tuple[bytes | None, ...]]:
    """Rows of SIMPLE, some with nulls; their decimals are whole numbers below 10000."""
    return [
        (
            struct.pack(">i", k),
            None if k % 7 == 3 else b"value " * (k % 5),
            None if k % 11 == 5 else struct.pack(">hhHHH", 1, 0, 0, 0, 1 + k % 9999),
        )
        for k in range(count)
    ]


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "text"])
@pytest.mark.parametrize("cells", EVERY.values(), ids=EVERY.keys())
def test_every_type_as_in_changes(cells: Cells, binary: bool) -> None:
    good = [pair[binary] for pair in cells.both] + (cells.binary if binary else cells.text)
    odd = cells.unrepresentable_binary if binary else cells.unrepresentable_text
    values = [None, *good, *odd, None]
    relation = relation_of(pgo.Column("id", 23, key=True), pgo.Column("v", cells.oid, cells.typmod))
    rows = [(struct.pack(">i", k), value) for k, value in enumerate(values)]
    text = frozenset() if binary else frozenset({"v"})
    stream = copied(rows)
    changes = by_messages(relation, rows, text)
    batches, rejects = decoded(relation, stream, text=text)
    same_columns(batches, changes)
    same_rejects(rejects, changes, stream)


def test_text_and_binary_columns_side_by_side() -> None:
    rows = [(struct.pack(">i", k), b"t%d" % k, b"%d.25" % k) for k in range(3000)]
    text = frozenset({"n"})
    batches, _ = decoded(SIMPLE, copied(rows), text=text)
    same_columns(batches, by_messages(SIMPLE, rows, text))


def test_cut_at_every_byte() -> None:
    rows = simple_rows(12)
    stream = copied(rows, extension=b"\1\2\3")
    changes = by_messages(SIMPLE, rows)
    for cut in range(len(stream) + 1):
        batches, _ = decoded(SIMPLE, stream, [max(cut, 1), len(stream)])
        same_columns(batches, changes)
    for size in (1, 2, 3, 7, 64):
        same_columns(decoded(SIMPLE, stream, [size])[0], changes)


@pytest.mark.parametrize("window", [1, 50, 4096, 1 << 18])
@pytest.mark.parametrize("pieces", [[70], [1 << 16], [1 << 20], [3, 100_000, 1]])
def test_many_rows_however_they_come(window: int, pieces: list[int]) -> None:
    rows = simple_rows(5000)
    stream = copied(rows)
    reader = CopyRows(SIMPLE, pgo.Options(), TYPES, COMMIT_LSN, window_bytes=window)
    at = k = 0
    while at < len(stream):
        reader.write(memoryview(stream)[at : at + pieces[k % len(pieces)]])
        at, k = at + pieces[k % len(pieces)], k + 1
    reader.finish()
    assert reader.row_count == len(rows)
    same_columns(reader.take_batches(), by_messages(SIMPLE, rows))


def test_batches_are_bounded_and_come_at_once() -> None:
    rows = simple_rows(2500)
    came: list[pa.RecordBatch] = []
    reader = CopyRows(
        SIMPLE, pgo.Options(batch_rows=1000), TYPES, COMMIT_LSN, on_batch=came.append, window_bytes=99
    )
    reader.write(copied(rows))
    assert [batch.num_rows for batch in came] == [1000, 1000]
    reader.finish()
    batches = [*came, *reader.take_batches()]
    assert [batch.num_rows for batch in batches] == [1000, 1000, 500]
    same_columns(batches, by_messages(SIMPLE, rows))
    small, _ = decoded(SIMPLE, copied(rows), batch_bytes=1)
    assert all(batch.num_rows <= 520 for batch in small)
    same_columns(small, by_messages(SIMPLE, rows))


def test_offsets_of_strings_stay_within_a_batch() -> None:
    """Numerics of a few bytes that print long: a batch ends before its offsets do."""
    relation = relation_of(pgo.Column("v", 1700))
    huge = struct.pack(">hhHHH", 1, 32767, 0, 0, 1)
    stream = copied([(huge,)] * 600)
    reader = CopyRows(relation, pgo.Options(batch_bytes=1 << 30), TYPES, COMMIT_LSN)
    for at in range(0, len(stream), 1000):
        reader.write(stream[at : at + 1000])
    reader.finish()
    batches = reader.take_batches()
    assert sum(batch.num_rows for batch in batches) == 600
    assert {len(text) for batch in batches for text in batch.column("v").to_pylist()} == {1 + 4 * 32_767}


def test_no_rows_and_no_columns() -> None:
    assert decoded(SIMPLE, copied([]))[0] == []
    batches, _ = decoded(relation_of(), copied([()] * 700))
    assert [batch.num_rows for batch in batches] == [700]
    assert batches[0].num_columns == METADATA


def test_only_the_columns_that_are_wanted() -> None:
    rows = [(a, None, c) for a, _, c in simple_rows(100)]
    batches, _ = decoded(SIMPLE, copied(rows), columns={"public.copied": ["n", "id"]})
    assert batches[0].schema.names[METADATA:] == ["id", "n"]
    same_columns(batches, by_messages(SIMPLE, rows, columns={"public.copied": ["n", "id"]}))


def test_values_without_an_arrow_form_raise_if_asked_to() -> None:
    relation = relation_of(pgo.Column("id", 23), pgo.Column("d", 1082))
    rows = [(struct.pack(">i", k), struct.pack(">i", 2**31 - 1 if k == 700 else k)) for k in range(900)]
    with pytest.raises(pgo.DecodeError, match=r"row 700, relation public.copied, column 'd'") as caught:
        decoded(relation, copied(rows), unrepresentable="raise")
    assert (caught.value.row, caught.value.column, caught.value.seq) == (700, "d", None)
    assert copied(rows)[caught.value.byte_offset :].startswith(struct.pack(">i", 2**31 - 1))


def test_malformed_values_raise_or_are_rejected_as_rows() -> None:
    rows: list[Any] = simple_rows(1200)
    bad = {5, 519, 520, 521, 1100, 1199}
    for k in bad:
        rows[k] = (b"\0" * 3, *rows[k][1:])
    stream = copied(rows)
    with pytest.raises(pgo.DecodeError, match=r"row 5, relation public.copied, column 'id', byte") as caught:
        decoded(SIMPLE, stream)
    assert str(caught.value) == str(pickled(caught.value))
    batches, rejects = decoded(SIMPLE, stream, on_error="quarantine")
    same_columns(batches, by_messages(SIMPLE, [row for k, row in enumerate(rows) if k not in bad]))
    assert rejects.column("raw").to_pylist() == [copied_row(rows[k]) for k in sorted(bad)]
    assert rejects.column("column").to_pylist() == ["id"] * len(bad)


def pickled(error: pgo.DecodeError) -> Any:
    import pickle

    return pickle.loads(pickle.dumps(error))


WHOLE = copied(simple_rows(3))
TWO_CELLS = copied([(b"\0\0\0\1", b"x")])


@pytest.mark.parametrize(
    ("stream", "what", "row"),
    [
        (b"1\tone\n2\ttwo\n3\tthree", "not a COPY stream in binary format", 0),
        (b"PGCOPY\n\xff\r\n\1" + WHOLE[11:], "not a COPY stream in binary format", 0),
        (copied([], flags=1 << 16), "unknown options", 0),
        (copied([], flags=1 << 31), "unknown options", 0),
        (SIGNATURE + struct.pack(">Ii", 0, -1), "unknown options", 0),
        (SIGNATURE + struct.pack(">Ii", 0, 1 << 30), "unknown options", 0),
        (TWO_CELLS, "the tuple has 2 cells, but its Relation describes 3 columns", 0),
        (copied(simple_rows(2)) [:-2] + b"\0\4" + b"\xff" * 16, "the tuple has 4 cells", 2),
        (copied([], trailer=b"\x80\0"), "the tuple has 32768 cells", 0),
        (copied([], trailer=b"\0\3" + struct.pack(">i", -2) + b"\xff" * 8), "length is negative", 0),
        (copied([], trailer=b"\0\3" + struct.pack(">i", 0x40000000)), "longer than any", 0),
        (copied([], trailer=b"\0\3" + struct.pack(">i", -1) + struct.pack(">i", 0x3FFFFFFF)), "longer than any", 0),
        (WHOLE[:-2], "ends too early", 3),
        (WHOLE[:-1], "ends too early", 3),
        (WHOLE[:-3], "ends too early", 2),
        (b"", "ends too early", 0),
        (SIGNATURE, "ends too early", 0),
        (copied([], extension=b"abcdef")[:-4], "ends too early", 0),
        (WHOLE + b"\0", "bytes are left over", 3),
        (WHOLE + WHOLE, "bytes are left over", 3),
    ],
)  # fmt: skip
def test_damaged_streams_are_errors_whatever_the_options(stream: bytes, what: str, row: int) -> None:
    for on_error in ("raise", "quarantine"):
        for pieces in ([1], [len(stream) or 1]):
            with pytest.raises(pgo.DecodeError, match=what) as caught:
                decoded(SIMPLE, stream, pieces, on_error=on_error)
            assert caught.value.row == row
            assert 0 <= caught.value.byte_offset <= len(stream)


def test_after_an_error_nothing_is_taken() -> None:
    reader = CopyRows(SIMPLE, pgo.Options(), TYPES, COMMIT_LSN, window_bytes=1)
    with pytest.raises(pgo.DecodeError):
        reader.write(TWO_CELLS)
    with pytest.raises(ValueError, match="nothing more of it is taken"):
        reader.write(WHOLE)
    with pytest.raises(ValueError, match="nothing more of it is taken"):
        reader.finish()


def test_after_an_error_of_who_gets_the_batches_nothing_is_taken() -> None:
    def refuse(batch: pa.RecordBatch) -> None:
        raise OSError("full")

    reader = CopyRows(SIMPLE, pgo.Options(batch_rows=2), TYPES, COMMIT_LSN, on_batch=refuse, window_bytes=1)
    with pytest.raises(OSError, match="full"):
        reader.write(WHOLE)
    with pytest.raises(ValueError, match="nothing more of it is taken"):
        reader.write(b"")


def test_a_column_named_like_a_metadata_column() -> None:
    with pytest.raises(ValueError, match="metadata_prefix"):
        CopyRows(relation_of(pgo.Column("_seq", 23)), pgo.Options(), TYPES, 0)


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_mutations_are_rows_or_errors(on_error: str) -> None:
    """Whatever the bytes: what a slow reader finds, and the decoder makes of inserts; the same however they are cut."""
    dice = random.Random(7)
    # Few columns, so that what is changed is often where rows and values begin; and in another one all types.
    few = [EVERY[name] for name in ("int4", "text", "numeric(10,2)", "int4[]", "jsonb")]
    found = [
        check_mutated(dice, cells, on_error)
        for cells, times in ((few, 600), ([*EVERY.values()], 150))
        for _ in range(times)
    ]
    assert 50 < sum(found) < len(found) - 50
