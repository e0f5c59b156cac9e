"""Tables derived from a seed: number and types of columns, lengths of values, share of nulls.

The decoder was not tuned to these tables, so they show its speed on arbitrary tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.corpora import Corpus
from benchmarks.corpora.columns import (
    TYPES,
    Cells,
    ColumnKind,
    Rng,
    big_endian,
    blanks,
    bytea,
    code,
    fixed_width,
    integer,
    join,
    long_text,
    numeric,
    numeric_as_string,
    numeric_typmod,
    printed,
    short_text,
    sized,
)
from benchmarks.corpora.messages import changes, generator, in_transactions, specs
from benchmarks.corpora.printed_columns import PRINTED_TYPES
from pgoutput_fast.encode import RelationSpec, encode_relation

__all__ = ["RandomTable", "array_of", "random_table"]

OID = 16_601
ROWS_PER_TRANSACTION = 500
_SAMPLE_ROWS = 1000
_MOST_COLUMNS = 40
_NO_NULLS = 0.5  # share of columns without nulls
_NULL_SHARES = (0.02, 0.1, 0.3, 0.6, 0.9)


@dataclass(frozen=True)
class RandomTable:
    """A table and its rows.

    Attributes:
        columns: {name: (type as written in SQL, share of nulls)}.
        text, binary: a corpus of the rows' inserts in either format.
    """

    columns: dict[str, tuple[str, float]]
    text: Corpus
    binary: Corpus

    def __str__(self) -> str:
        kinds = (f"{kind} ({nulls:.0%} null)" if nulls else kind for kind, nulls in self.columns.values())
        return ", ".join(kinds)


def random_table(seed: int, nbytes: int) -> RandomTable:
    """The table of a seed, with about `nbytes` of messages in text."""
    rng = generator(seed, "table")
    count = round(np.exp(rng.random() * np.log(_MOST_COLUMNS)))
    weights = np.array([weight for weight, _ in _KINDS.values()], float)
    kinds: dict[str, ColumnKind] = {}
    columns: dict[str, tuple[str, float]] = {}
    for k in range(count):
        name = list(_KINDS)[rng.choice(len(_KINDS), p=weights / weights.sum())]
        nulls = 0.0 if k == 0 or rng.random() < _NO_NULLS else float(rng.choice(_NULL_SHARES))
        kinds[f"c{k}"] = _KINDS[name][1](rng)
        columns[f"c{k}"] = (name, nulls)
    shares = {name: nulls for name, (_, nulls) in columns.items()}
    sample = _cells(seed, kinds, shares, _SAMPLE_ROWS)
    row_bytes = pc.mean(pc.binary_length(_inserts(sample, binary=False))).as_py()
    transactions = max(1, round(nbytes / row_bytes / ROWS_PER_TRANSACTION))
    cells = _cells(seed, kinds, shares, transactions * ROWS_PER_TRANSACTION)
    relation = encode_relation(RelationSpec(OID, "public", "t", specs(kinds, "c0")))
    truth = {"public.t": pa.table({name: each.values for name, each in cells.items()})}
    text, binary = (
        Corpus(
            f"random {seed}", in_transactions(relation, _inserts(cells, binary), ROWS_PER_TRANSACTION), truth
        )
        for binary in (False, True)
    )
    return RandomTable(columns, text, binary)


def _cells(seed: int, kinds: dict[str, ColumnKind], nulls: dict[str, float], rows: int) -> dict[str, Cells]:
    cells = {}
    for name, kind in kinds.items():
        rng = generator(seed, name)
        made = kind.make(rng, rows)
        cells[name] = made.with_nulls(rng, nulls[name]) if nulls[name] else made
    return cells


def _inserts(cells: dict[str, Cells], binary: bool) -> pa.Array:
    wire = [each.binary if binary else each.text for each in cells.values()]
    return changes(b"I", OID, wire, b"b" if binary else b"t")


# ---- types ---------------------------------------------------------------------------------------------------------


def array_of(
    element: Callable[[Rng, int], Cells], oid: int, most: int, nulls: float
) -> Callable[[Rng, int], Cells]:
    """Arrays of up to `most` elements with this type oid, some of them null. Elements with a space are quoted."""

    def make(rng: Rng, n: int) -> Cells:
        counts = rng.integers(0, most + 1, n)
        flat = element(rng, n * most)
        flat = flat.with_nulls(rng, nulls) if nulls else flat
        present = np.arange(most) < counts[:, None]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        values = pa.ListArray.from_arrays(offsets, flat.values.filter(pa.array(present.reshape(-1))))
        words = pc.if_else(pc.match_substring(flat.text, " "), join(b'"', flat.text, b'"'), flat.text)
        words = pc.fill_null(words, b"NULL")
        elements = pc.fill_null(sized(pc.fill_null(flat.binary, b"")), b"")
        elements = pc.if_else(flat.binary.is_null(), pa.scalar(b"\xff\xff\xff\xff"), elements)
        text: list[pa.Array | bytes] = [b"{"]
        binary: list[pa.Array | bytes] = [_array_header(counts, oid)]
        for k in range(most):
            here, at = pa.array(present[:, k]), pa.array(np.arange(n) * most + k)
            text.append(pc.if_else(here, join(b"," if k else b"", words.take(at)), None))
            binary.append(pc.if_else(here, elements.take(at), None))
        return Cells(values, join(*text, b"}"), join(*binary))

    return make


def _array_header(counts: np.ndarray, oid: int) -> pa.Array:
    """The part of array_send's output before the elements. The flag for nulls is never read, so it is always set."""
    header = np.empty((len(counts), 5), ">i4")
    header[:, 0], header[:, 1], header[:, 2], header[:, 3], header[:, 4] = 1, 1, oid, counts, 1
    empty = pa.scalar(np.array([0, 0, oid], ">i4").tobytes())
    return pc.if_else(
        pa.array(counts == 0), empty, fixed_width(header.view(np.uint8).reshape(len(counts), 20))
    )


def _rounded(rng: Rng, n: int, places: int | None) -> Cells:
    numbers = np.exp(rng.random(n) * np.log(1e6)) * np.where(rng.random(n) < 0.3, -1, 1)
    if places is not None:
        numbers = np.round(numbers, places) + 0.0
    return Cells(pa.array(numbers), printed(pa.array(numbers)), big_endian(numbers, ">f8"))


def _float8(rng: Rng) -> ColumnKind:
    places = [1, 2, 4, 8, None][int(rng.integers(0, 5))]
    return ColumnKind(701, lambda rng, n: _rounded(rng, n, places))


def _integer(oid: int, arrow: pa.DataType, code: str, most: int) -> Callable[[Rng], ColumnKind]:
    return lambda rng: ColumnKind(oid, integer(arrow, code, int(rng.integers(2, most + 1))))


def _array(oid: int, element_oid: int, element: Callable[[Rng, int], Cells]) -> Callable[[Rng], ColumnKind]:
    def drawn(rng: Rng) -> ColumnKind:
        most, nulls = int(rng.integers(1, 9)), float(rng.choice([0, 0, 0.1]))
        return ColumnKind(oid, array_of(element, element_oid, most, nulls))

    return drawn


def _char(rng: Rng) -> ColumnKind:
    width = int(rng.integers(1, 100))
    return ColumnKind(1042, blanks(width), width + 4)


def _bytea(rng: Rng) -> ColumnKind:
    most = int(rng.integers(4, 65))
    return ColumnKind(17, lambda rng, n: bytea(rng, n, 0, most))


def _of(name: str) -> Callable[[Rng], ColumnKind]:
    return lambda rng: (TYPES | PRINTED_TYPES)[name]


_KINDS: dict[str, tuple[float, Callable[[Rng], ColumnKind]]] = {
    "bool": (7, _of("bool")),
    "int2": (4, _integer(21, pa.int16(), ">i2", 15)),
    "int4": (18, _integer(23, pa.int32(), ">i4", 31)),
    "int8": (12, _integer(20, pa.int64(), ">i8", 62)),
    "float4": (1, _of("float4")),
    "float8": (6, _float8),
    "numeric(12,2)": (
        7,
        lambda rng: ColumnKind(1700, numeric(int(rng.integers(8, 37))), numeric_typmod(12, 2)),
    ),
    "numeric": (3, lambda rng: ColumnKind(1700, numeric_as_string(int(rng.integers(8, 37))))),
    "varchar": (8, lambda rng: ColumnKind(1043, code)),
    "short text": (11, lambda rng: ColumnKind(25, short_text)),
    "long text": (5, lambda rng: ColumnKind(25, long_text(int(rng.integers(5, 60))))),
    "char": (1, _char),
    "jsonb": (4, _of("jsonb")),
    "bytea": (2, _bytea),
    "uuid": (4, _of("uuid")),
    "date": (5, _of("date")),
    "time": (1, _of("time")),
    "timestamp": (4, _of("timestamp")),
    "timestamptz": (8, _of("timestamptz")),
    "interval": (1, _of("interval")),
    "inet": (1, _of("inet v4")),
    "int4[]": (3, _array(1007, 23, integer(pa.int32(), ">i4", 31))),
    "text[]": (3, _array(1009, 25, short_text)),
    "point": (1, _of("point")),
    "int4range": (1, _of("int4range")),
}
"""{type: (weight, a function that draws a column of it)}."""
