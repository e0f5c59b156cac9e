"""Stage 5, assemble: Arrow through its C data interface; batches and their memory."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.every_type import ALL
from pgoutput_fast import Column, Options, encode
from pgoutput_fast._core.columns.column import convert
from pgoutput_fast._core.rows.planning import use_windows
from pgoutput_fast.encode import ColumnSpec, RelationSpec
from pgoutput_fast.schema.column_types import column_type_of
from support.forms import and_slow

TEXTS = column_type_of(Column("c", 1009), Options())


class OnlyDunder:
    def __init__(self, exported: Any, kind: pa.DataType) -> None:
        self._exported = exported

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._exported.__arrow_c_array__(requested_schema)


def test_an_object_with_only_the_dunder_is_enough() -> None:
    exported, _ = convert(TEXTS, [b"{a,b}", None, b"{}"], False, True)
    assert pa.array(OnlyDunder(exported, TEXTS.arrow)).to_pylist() == [["a", "b"], None, []]


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.unsanitized
def test_capsules_that_nobody_takes_leak_nothing() -> None:
    values: list[bytes | None] = [b"{" + b"x" * 100_000 + b"}"] * 20
    for _ in range(20):
        convert(TEXTS, values, False, True)[0].__arrow_c_array__()
    gc.collect()
    before = resident()
    for _ in range(200):
        convert(TEXTS, values, False, True)[0].__arrow_c_array__()
        convert(TEXTS, values, False, True)
    assert resident() - before < 100_000, "kilobytes: 200 leaked arrays would be 800,000"


def test_children_outlive_their_parent() -> None:
    exported, _ = convert(TEXTS, [b"{a,b}"] * 1000, False, True)
    child = pa.array(exported).flatten()
    del exported
    gc.collect()
    assert child.to_pylist() == ["a", "b"] * 1000


FORKS = """
import os, threading, time, warnings
from pgoutput_fast import Column, Options
from pgoutput_fast._core.columns.column import convert, hold_memory
from pgoutput_fast.schema.column_types import column_type_of
warnings.simplefilter("ignore")
texts = column_type_of(Column("c", 25), Options())
convert(texts, [b"x" * 100_000], False)
threading.Thread(target=hold_memory, args=(500,)).start()
time.sleep(0.1)
child = os.fork()
if not child:
    convert(texts, [b"x" * 100_000], False)
    os._exit(0)
for _ in range(5000):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.1)
else:
    os.kill(child, 9)
assert ended and status == 0, "the child waits for a lock that nobody holds"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.unsanitized
def test_a_child_has_memory_whoever_held_it_in_its_parent() -> None:
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=600)


def buffers_of(array: pa.Array) -> list[pa.Buffer]:
    return [buffer for buffer in array.buffers() if buffer is not None]


@pytest.mark.parametrize("name", ["int4", "text", "bool", "int4[]", "numeric(10,2)"])
def test_buffers_are_aligned(name: str) -> None:
    cells = ALL[name]
    kind = column_type_of(Column("c", cells.oid, cells.typmod), Options())
    array, _ = convert(kind, [text for text, _ in cells.both] * 50 + [None], False)
    assert all(buffer.address % 64 == 0 for buffer in buffers_of(array))


def stream(count: int, columns: tuple[ColumnSpec, ...], cells: list[list[Any]]) -> list[bytes]:
    relation = RelationSpec(16384, "public", "t", columns)
    inserts = [encode.encode_insert(16384, row) for row in cells]
    body = [inserts[k % len(inserts)] for k in range(count)]
    return [encode.encode_begin(1, 0, 7), encode.encode_relation(relation), *body]


COLUMNS = (
    ColumnSpec("a", 23),
    ColumnSpec("b", 25),
    ColumnSpec("c", 16),
    ColumnSpec("d", 1009),
    ColumnSpec("e", 1000),
)
ROWS = [
    ["1", "x", "t", "{a,NULL}", "{t}"],
    [None, "", None, None, "{f,NULL,t}"],
    ["3", None, "f", "{}", None],
]
VALUES = [
    [1, "x", True, ["a", None], [True]],
    [None, "", None, None, [False, None, True]],
    [3, None, False, [], None],
]


@pytest.mark.parametrize("batch_rows", [2, 3, 7, 64, 1000, 1025, 65536])
def test_batches_are_bounded_and_complete(batch_rows: int) -> None:
    out = pgo.decode(stream(5000, COLUMNS, ROWS), options=Options(batch_rows=batch_rows))
    assert all(each.batch.num_rows <= batch_rows for each in out.changes)
    for each in out.changes:
        each.batch.validate(full=True)
    whole = out.table("public.t")
    assert whole.column("_seq").to_pylist() == list(range(2, 5002))
    for at, name in enumerate("abcde"):
        assert whole.column(name).to_pylist() == [VALUES[k % 3][at] for k in range(5000)]


# Batches below and above the size up to which all buffers lie in one piece of memory.
@pytest.mark.parametrize("count", and_slow([1, 2, 9], [100, 1000, 10_000]))
def test_columns_outlive_their_batch(count: int) -> None:
    messages = stream(count, COLUMNS, ROWS)
    batch = pgo.decode(messages).changes[0].batch
    for column in batch.columns:
        if column.null_count < count:
            assert all(buffer.address % 64 == 0 for buffer in buffers_of(column))
    columns = {name: batch.column(name) for name in "abcde"}
    parts = columns["d"].flatten()
    expected = {name: column.to_pylist() for name, column in columns.items()}
    del batch
    others = [pgo.decode(messages[:2] + messages[-1:] * count) for _ in range(5)]  # would take what was freed
    gc.collect()
    for at, (name, column) in enumerate(columns.items()):
        assert column.to_pylist() == expected[name] == [VALUES[k % 3][at] for k in range(count)]
    del columns, column
    gc.collect()
    assert parts.to_pylist() == [each for k in range(count) for each in VALUES[k % 3][3] or []]
    assert len(others) == 5


def test_padding_is_zero_also_where_rows_were_taken_back() -> None:
    good = stream(3, COLUMNS, ROWS)
    bad = stream(2, COLUMNS, [["nonsense", "x", "t", "{a,NULL}", "{t,NULL,t}"]])[2:]
    before = use_windows(5)
    try:
        out = pgo.decode([*good, *bad], options=Options(on_error="quarantine"))
    finally:
        use_windows(before)
    assert out.rejects.num_rows == 2
    (change,) = out.changes
    alone = pgo.decode(good).changes[0].batch
    for name in "abcde":
        found, wanted = change.batch.column(name), alone.column(name)
        assert [b.to_pybytes() for b in buffers_of(found)] == [b.to_pybytes() for b in buffers_of(wanted)]


def test_batches_are_bounded_in_bytes() -> None:
    out = pgo.decode(
        stream(3000, (ColumnSpec("b", 25),), [["x" * 1000]]), options=Options(batch_bytes=100_000)
    )
    assert len(out.changes) > 2
    assert sum(each.batch.num_rows for each in out.changes) == 3000


def test_updates_keep_both_images_in_one_batch() -> None:
    relation = RelationSpec(16384, "public", "t", (ColumnSpec("a", 23),))
    updates = [encode.encode_update(16384, ["2"], old=["1"])] * 10
    out = pgo.decode(
        [encode.encode_begin(1, 0, 7), encode.encode_relation(relation), *updates],
        options=Options(batch_rows=3),
    )
    assert [each.batch.num_rows for each in out.changes] == [2] * 10


def test_no_columns_and_many_columns() -> None:
    none = pgo.decode(stream(10, (), [[]]))
    assert none.changes[0].batch.num_rows == 10
    assert none.changes[0].batch.num_columns == 11
    many = tuple(ColumnSpec(f"c{k}", 23) for k in range(1600))
    out = pgo.decode(stream(300, many, [[str(k) for k in range(1600)]]))
    assert sum(each.batch.num_rows for each in out.changes) == 300
    assert out.table("public.t").column("c1599").to_pylist() == [1599] * 300


def test_no_rows() -> None:
    out = pgo.decode([])
    assert out.changes == []
    for name in ("transactions", "outcomes", "truncates", "messages", "rejects"):
        assert getattr(out, name).num_rows == 0


def test_a_block_of_empty_strings_before_others() -> None:
    rows = [["1", "", None, None, None]]
    assert pgo.decode(stream(3000, COLUMNS, rows)).table("public.t").column("b").to_pylist() == [""] * 3000
