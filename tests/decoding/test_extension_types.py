"""Types of extensions as other libraries take them, and damaged values of theirs, from recorded values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from cells.cell import Cells
from cells.extensions import CELLS
from cells.nested import TYPES
from pgoutput_fast.encode import Binary, ColumnSpec, RelationSpec, Writer

NAMES = {each.oid: (each.namespace, each.name) for each in TYPES.values()}
NAMES |= {each.oid: NAMES[each.of] for each in TYPES.values() if each.kind == "domain" and each.of in NAMES}
MODES: list[Any] = ["as_sent", "committed"]


def decoded(columns: dict[str, Cells], rows: list[list[Any]], **options: Any) -> pgo.Decoded:
    oids = (ColumnSpec(name, cells.oid) for name, cells in columns.items())
    spec = RelationSpec(16401, "public", "t", (ColumnSpec("id", 23, key=True), *oids))
    writer = Writer(types=NAMES)
    wal = writer.begin(7, 100, 0)
    for number, row in enumerate(rows):
        wal += writer.change(spec, "insert", new=[str(number), *row])
    wal += writer.commit(100, 108, 0)
    return pgo.Decoder(pgo.Options(**options), catalog=pgo.Catalog(types=TYPES)).decode(wal)


def every(**options: Any) -> pa.Table:
    """A row with a value of every type, and one of nulls."""
    rows = [[cells.both[0][0] for cells in CELLS.values()], [None] * len(CELLS)]
    return pa.table(decoded(CELLS, rows, **options).table("public.t"))


@pytest.mark.parametrize("mode", MODES)
def test_libraries_take_them(mode: Any) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    table = every(transactions=mode)
    frame = table.to_pandas()
    assert frame["vector"][0].tolist() == table["vector"][0].as_py()
    assert polars.from_arrow(table)["geometry"].to_list() == table["geometry"].to_pylist()
    connection = duckdb.connect()
    # A GEOMETRY of DuckDB 2 has no spherical edges.
    connection.register("rest", table.drop_columns(["geography"]))
    assert connection.sql("SELECT hstore, vector[1] FROM rest").fetchall() == [({}, 1.0), (None, None)]
    connection.register("flat", every(transactions=mode, plain=True))
    found = connection.sql("SELECT typeof(geography), hstore, vector FROM flat").fetchall()[0]
    assert found == ("BLOB", "{}", "[1.0, 2.5, -2.999999970665357e-10]")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("name", CELLS)
def test_damaged_values_are_errors_or_rejects(name: str, binary: bool, mode: Any) -> None:
    cells = CELLS[name]
    good = cells.both[0][binary]
    wrong = cells.malformed_binary if binary else cells.malformed_text
    odd = cells.unrepresentable_binary if binary else cells.unrepresentable_text

    def sent(raw: bytes) -> list[Any]:
        return [Binary(raw) if binary else raw]

    for raw in wrong:
        with pytest.raises(pgo.DecodeError, match="column 'c'"):
            decoded({"c": cells}, [sent(good), sent(raw)], transactions=mode)
    rows = [sent(raw) for raw in [good, *wrong, *odd, good]]
    out = decoded({"c": cells}, rows, transactions=mode, on_error="quarantine")
    assert out.table("public.t").column("id").to_pylist() == [0, *range(len(wrong) + 1, len(rows))]
    # Of a damaged row, the whole message is kept, of a value without an Arrow form the value.
    kept = [row["raw"] for row in out.rejects.to_pylist() if row["column"] == "c"]
    assert kept[len(wrong) :] == odd
    assert [raw[:1] for raw in kept[: len(wrong)]] == [b"I"] * len(wrong)
    assert all(raw.endswith(value) for raw, value in zip(kept, wrong, strict=False))
