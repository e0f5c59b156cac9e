"""Nested values over many blocks and batches: what is taken back leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cells.nested import DEEP, PAIR, PAIRS, TYPES, USER, f8, i4, record, span, spans
from pgoutput_fast import Catalog, Decoder, Options
from pgoutput_fast.encode import Binary, ColumnSpec, RelationSpec, Writer

COLUMNS = (
    ColumnSpec("id", 23, key=True), ColumnSpec("r", 3904), ColumnSpec("m", 4451), ColumnSpec("pt", 600), ColumnSpec("p", PAIR),
    ColumnSpec("ps", PAIRS), ColumnSpec("ts", 3908), ColumnSpec("d", DEEP),
)  # fmt: skip
TABLE = RelationSpec(16401, "public", "t", COLUMNS)
DEEP_TEXT, DEEP_BINARY = USER["deep"].both[0]
PS_TEXT, PS_BINARY = USER["pair[]"].both[0]
# Without and with escapes, nulls, both formats, and values without an Arrow form.
ROWS: list[list[Any]] = [
    ["[1,5)", "{[1,5),[7,)}", "(1,2)", '(1,"x y",2)', '{"(1,x,2)"}', '["2000-01-01 00:00:00",)', None],
    [None] * 7,
    ["empty", "{}", None, '(1,"x ""y""",2)', PS_TEXT, "empty", DEEP_TEXT],
    [Binary(each) for each in (span(2, i4(1), i4(5)), spans(span(24)), f8(1, 2), record((23, None), (25, b"q"), (1700, None)),
                               PS_BINARY, span(24), DEEP_BINARY)],
    ["(,)", None, "(0,0)", "(1,x,NaN)", '{"(1,x)",NULL}', "[infinity,)", '(,,,"[infinity,)",,,"[0:0]={1}")'],
]  # fmt: skip
MALFORMED: list[list[Any]] = [
    ["[1,x)", *ROWS[0][1:]], [*ROWS[2][:6], '("(1,x",,,,,,)'], [*ROWS[0][:4], '{"(1,x,y)"}', None, None], [*ROWS[0][:1], "{[1,5)", *ROWS[0][2:]],
]  # fmt: skip


def decode(rows: list[list[Any]], **options: Any) -> Any:
    writer = Writer()
    payloads = writer.begin(7, 100, 0)
    for number, row in enumerate(rows):
        payloads += writer.change(TABLE, "insert", new=[str(number), *row])
    return Decoder(Options(**options), catalog=Catalog(types=TYPES)).decode(payloads)


def values(out: Any) -> list[Any]:
    for each in out.changes:
        each.batch.validate(full=True)
    rows: list[Any] = out.table("public.t").drop_columns(["_seq", "_txn"]).to_pylist()
    return rows


@pytest.mark.parametrize("batch_rows", [2, 7, 1000, 65536])
def test_batches_have_what_single_rows_have(batch_rows: int) -> None:
    single = [values(decode([row]))[0] for row in ROWS]
    rows = values(decode([ROWS[(k * k) % 5] for k in range(3000)], batch_rows=batch_rows))
    assert rows == [{**single[(k * k) % 5], "id": k} for k in range(3000)]
    assert single[4]["_unrepresentable"] == ["p", "ps", "ts", "d"]
    assert single[2]["d"] == single[3]["d"]


@pytest.mark.parametrize("every", [1, 3, 700])
def test_rejected_messages_leave_nothing_behind(every: int) -> None:
    """A block with malformed values is taken back and done once more without them."""
    wire, expected = [], []
    for k in range(2500):
        if k % every == every - 1:
            wire.append(MALFORMED[k % len(MALFORMED)])
        else:
            wire.append(ROWS[k % 5])
            expected.append(k)
    out = decode(wire, on_error="quarantine")
    whole = values(decode([ROWS[k % 5] for k in range(2500)]))
    if not expected:
        assert out.changes == []
    else:
        assert values(out) == [whole[k] for k in expected]
    assert sum(row["format"] is None for row in out.rejects.to_pylist()) == 2500 - len(expected)


def test_as_numpy() -> None:
    (change,) = decode(ROWS[:3]).changes
    arrays = change.to_numpy()
    assert arrays["r"].tolist()[1] is None
    assert arrays["r"].tolist()[0]["upper"] == 5
    assert arrays["ps"].tolist()[0].tolist()[0]["b"] == "x"


def test_buffers_are_aligned_and_children_as_long() -> None:
    batch = decode(ROWS * 100).changes[0].batch
    struct = batch.column("d")
    assert pa.types.is_struct(struct.type)
    assert all(len(struct.field(k)) == len(struct) for k in range(struct.type.num_fields))
    for name in ("r", "m", "p", "ps", "d"):
        assert all(buffer.address % 64 == 0 for buffer in batch.column(name).buffers() if buffer is not None)
