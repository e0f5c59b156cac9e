"""Streams of messages, generated from a seed, and the expected results of decoding them.

`wide text` and `wide binary` have the same inserts into a table of 16 columns of different types. `narrow text` has
three of these columns. `pgbench` has the messages of pgbench's default script. A corpus is generated once and kept in a
cache directory as Arrow IPC.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pgoutput_fast as pgo
from benchmarks.corpora.columns import TYPES, Cells, ColumnKind, join, printed
from benchmarks.corpora.messages import boundaries, changes, generator, in_transactions, ordered, specs
from pgoutput_fast.encode import (
    RelationSpec,
    encode_relation,
    encode_truncate,
)

__all__ = [
    "FULL_MESSAGES",
    "NARROW",
    "SEED",
    "WIDE_COLUMNS",
    "Corpus",
    "check",
    "corpus",
    "csv_of",
    "wide_cells",
]

SEED = 20_261_120
# Part of the names of cached files. Increase it when the generated corpora change.
FORMAT_VERSION = 1

# name -> (type of columns.TYPES, share of nulls)
WIDE_COLUMNS: dict[str, tuple[str, float]] = {
    "id": ("serial", 0),
    "kind": ("int2", 0),
    "quantity": ("int4", 0),
    "account": ("int8", 0),
    "price": ("numeric(12,2)", 0.02),
    "ratio": ("float8", 0),
    "active": ("bool", 0),
    "day": ("date", 0.05),
    "changed": ("timestamptz", 0),
    "token": ("uuid", 0),
    "code": ("code", 0),
    "city": ("short text", 0),
    "note": ("long text", 0),
    "remark": ("short text", 0.3),
    "doc": ("jsonb", 0),
    "data": ("bytea", 0.1),
}
WIDE_OID = 16_401
WIDE_ROWS_PER_TRANSACTION = 740
WIDE_TRANSACTIONS = 500
NARROW = "narrow text"
NARROW_COLUMNS = ("id", "quantity", "code")
PGBENCH_TRANSACTIONS = 100_000

# At scale 1.
FULL_MESSAGES = {"wide text": 371_001, "wide binary": 371_001, "pgbench": 600_008}


@dataclass(frozen=True)
class Corpus:
    """A stream and the expected result.

    Attributes:
        name: a key of FULL_MESSAGES, or NARROW.
        payloads: the messages.
        tables: {qualified name: the rows as columns, in the order in which they were sent}.
    """

    name: str
    payloads: pa.Array
    tables: dict[str, pa.Table]

    @property
    def nbytes(self) -> int:
        """Bytes of the messages, without Arrow's offsets."""
        return self.bytes.nbytes

    @property
    def bytes(self) -> np.ndarray[Any, Any]:
        """The bytes of all messages, without a copy."""
        _, offsets, data = self.payloads.buffers()
        ends = np.frombuffer(offsets, np.int32)[self.payloads.offset :]
        return np.frombuffer(data, np.uint8)[ends[0] : ends[len(self.payloads)]]

    @property
    def cells(self) -> int:
        return sum(table.num_rows * table.num_columns for table in self.tables.values())


def corpus(name: str, scale: float = 1.0, seed: int = SEED) -> Corpus:
    """The corpus of this name. `scale` is the share of its full size, in whole transactions and at least one.

    Raises:
        ValueError: for another name than NARROW and those of FULL_MESSAGES.
    """
    names = (*FULL_MESSAGES, NARROW)
    if name not in names:
        raise ValueError(f"name must be one of {', '.join(names)}, not {name!r}")
    directory = _cache() / f"v{FORMAT_VERSION}-{name.replace(' ', '-')}-{seed}-{scale:g}"
    if not directory.exists():
        made = _pgbench(scale, seed) if name == "pgbench" else _wide(name, scale, seed)
        _write(made, directory)
    payloads = _read(directory / "payloads.arrow").column("payload").combine_chunks()
    tables = sorted(directory.glob("table-*.arrow"))
    return Corpus(name, payloads, {path.stem.removeprefix("table-"): _read(path) for path in tables})


def check(corpus: Corpus) -> None:
    """Decodes the corpus and compares every value with its source value.

    Raises:
        AssertionError: if a value differs; the error text names the table and column.
    """
    out = pgo.decode(corpus.payloads)
    assert out.rejects.num_rows == 0
    for name, truth in corpus.tables.items():
        decoded = out.table(name)
        assert decoded.num_rows == truth.num_rows, f"{corpus.name}: {name} has {decoded.num_rows} rows"
        for column in truth.column_names:
            same = decoded[column].equals(truth[column])
            assert same, f"{corpus.name}: column {column} of {name} differs from what was encoded"


# ---- the cache ---------------------------------------------------------------------------------------------


def _cache() -> Path:
    given = os.environ.get("PGOUTPUT_FAST_BENCH_CACHE")
    return Path(given) if given else Path(tempfile.gettempdir()) / f"pgoutput_fast-corpora-{os.getuid()}"


def _write(made: Corpus, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as hidden:
        whole = Path(hidden) / "whole"
        whole.mkdir()
        _write_table(pa.table({"payload": made.payloads}), whole / "payloads.arrow")
        for name, table in made.tables.items():
            _write_table(table.combine_chunks(), whole / f"table-{name}.arrow")
        try:
            whole.rename(directory)
        except OSError:
            if not directory.exists():  # otherwise another run made it first
                raise


def _write_table(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def _read(path: Path) -> pa.Table:
    # Reads the file into memory. If it were mapped, the first benchmark would include its page faults.
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


# ---- wide --------------------------------------------------------------------------------------------------


def wide_cells(scale: float = 1.0, seed: int = SEED) -> dict[str, Cells]:
    """The wide table's columns."""
    rows = WIDE_ROWS_PER_TRANSACTION * _transactions(WIDE_TRANSACTIONS, scale)
    columns = {}
    for name, (kind, nulls) in WIDE_COLUMNS.items():
        rng = generator(seed, "wide", name)
        cells = TYPES[kind].make(rng, rows)
        columns[name] = cells.with_nulls(rng, nulls) if nulls else cells
    return columns


def _transactions(full: int, scale: float) -> int:
    return max(1, round(full * scale))


def _wide(name: str, scale: float, seed: int) -> Corpus:
    table, cells = name.split()[0], wide_cells(scale, seed)
    if name == NARROW:
        cells = {column: cells[column] for column in NARROW_COLUMNS}
    binary = name == "wide binary"
    rows = changes(
        b"I",
        WIDE_OID,
        [each.binary if binary else each.text for each in cells.values()],
        b"b" if binary else b"t",
    )
    columns = specs({column: TYPES[WIDE_COLUMNS[column][0]] for column in cells}, "id")
    relation = encode_relation(RelationSpec(WIDE_OID, "public", table, columns))
    payloads = in_transactions(relation, rows, WIDE_ROWS_PER_TRANSACTION)
    values = pa.table({column: each.values for column, each in cells.items()})
    return Corpus(name, payloads, {f"public.{table}": values})


def csv_of(cells: dict[str, Cells]) -> pa.Buffer:
    """The rows as COPY TO (FORMAT csv) writes them, without a header."""
    parts: list[Any] = []
    for each in cells.values():
        text = each.text.cast(pa.string())
        special = pc.match_substring_regex(text, '[",\\n]')
        quoted = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")
        parts += [pc.fill_null(pc.if_else(special, quoted, text), "").cast(pa.binary()), b","]
    parts[-1] = b"\n"
    return join(*parts).buffers()[2]


# ---- pgbench -----------------------------------------------------------------------------------------------

_INT4 = TYPES["int4"]
_PGBENCH: dict[str, tuple[int, dict[str, ColumnKind]]] = {
    "accounts": (
        16_501,
        {"aid": _INT4, "bid": _INT4, "abalance": _INT4, "filler": TYPES["char(84)"]},
    ),
    "tellers": (
        16_502,
        {"tid": _INT4, "bid": _INT4, "tbalance": _INT4, "filler": TYPES["char(84)"]},
    ),
    "branches": (
        16_503,
        {"bid": _INT4, "bbalance": _INT4, "filler": TYPES["char(84)"]},
    ),
    "history": (
        16_504,
        {
            "tid": _INT4,
            "bid": _INT4,
            "aid": _INT4,
            "delta": _INT4,
            "mtime": TYPES["timestamp"],
            "filler": ColumnKind(1042, TYPES["char(84)"].make, 26),
        },
    ),
}


def _pgbench(scale: float, seed: int) -> Corpus:
    """The default script: B, three updates, an insert, C. pgbench's own truncate precedes all of them."""
    count = _transactions(PGBENCH_TRANSACTIONS, scale)
    rng = generator(seed, "pgbench")

    def integers(low: int, high: int) -> pa.Array:
        return pa.array(rng.integers(low, high, count, dtype=np.int32))

    bid, tid, aid, delta = integers(1, 11), integers(1, 101), integers(1, 1_000_001), integers(-5000, 5001)
    moment = TYPES["timestamp"].make(rng, count)
    filler = TYPES["char(84)"].make(rng, count)
    no_filler = pa.nulls(count, pa.string())
    balance = [pc.cumulative_sum(delta), integers(-200_000, 200_000), integers(-50_000, 50_000)]
    tables = {
        "accounts": [aid, bid, balance[2], filler.values],
        "tellers": [tid, bid, balance[1], no_filler],
        "branches": [bid, balance[0], no_filler],
        "history": [tid, bid, aid, delta, moment.values, no_filler],
    }
    relations, streams, truth = {}, [], {}
    for name, columns in tables.items():
        oid, kinds = _PGBENCH[name]
        key = None if name == "history" else next(iter(kinds))
        spec = RelationSpec(oid, "public", f"pgbench_{name}", specs(kinds, key))
        relations[name] = encode_relation(spec)
        text = [moment.text if each is moment.values else printed(each) for each in columns]
        streams.append(changes(b"I" if name == "history" else b"U", oid, text, b"t"))
        truth[f"public.pgbench_{name}"] = pa.table(dict(zip(kinds, columns, strict=True)))
    begins, commits = boundaries(count + 1)
    # The server sends every Relation once. Halfway, an ANALYZE of branches makes it send that Relation again.
    order = np.stack([np.arange(count) + k * count for k in range(6)], axis=1).reshape(-1)
    body = ordered([begins[1:], *streams, commits[1:]], order)
    half = count // 2 * 6 + 3
    described = [relations[name] for name in ("accounts", "tellers", "branches")]
    truncate = encode_truncate([_PGBENCH["history"][0]])
    start = [begins[0].as_py(), relations["history"], truncate, commits[0].as_py()]
    parts = [
        pa.array(start, pa.binary()),
        body[:1],
        pa.array(described, pa.binary()),
        body[1:half],
        pa.array(described[-1:], pa.binary()),
        body[half:],
    ]
    history = truth["public.pgbench_history"]
    truncated = pa.table([pa.nulls(1, field.type) for field in history.schema], schema=history.schema)
    truth["public.pgbench_history"] = pa.concat_tables([truncated, history])
    return Corpus("pgbench", pa.concat_arrays(parts), truth)
