"""Decoded as a collection, its tables in other libraries, and what a person sees of results, catalogs and decoders."""

from __future__ import annotations

import html.parser
import re
import threading
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer, encode_relation, encode_stream_start
from support.paths import DOCS

ORDERS = RelationSpec(
    16401,
    "public",
    "orders",
    (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25), ColumnSpec("at", 1184)),
)
LINES = RelationSpec(16402, "Sales", "Order Lines", (ColumnSpec("id", 20),))
WIDER = RelationSpec(16401, "public", "orders", (*ORDERS.columns, ColumnSpec("paid", 16)))


def stream() -> list[bytes]:
    """Two tables, one of them with two versions, and a table without changes."""
    writer = Writer()
    wal = writer.begin(7, 100, 0)
    wal += writer.change(ORDERS, "insert", new=["1", "first", "2026-01-01 00:00:00+00"])
    wal += writer.change(LINES, "insert", new=["10"])
    wal += writer.change(WIDER, "insert", new=["2", None, None, "t"])
    wal += writer.relation(RelationSpec(16403, "public", "quiet", ()))
    return wal + writer.commit(100, 108, 0)


# ---- a collection --------------------------------------------------------------------------------------------------


def test_a_result_is_a_collection_of_batches() -> None:
    decoded = pgo.decode(stream())
    assert len(decoded) == len(decoded.changes) == 3
    assert list(decoded) == decoded.changes
    assert [each.batch.num_rows for each in decoded] == [1, 1, 1]
    assert decoded["public.orders"].equals(decoded.table("public.orders"))
    assert decoded[16402].equals(decoded.table('"Sales"."Order Lines"'))
    assert decoded["public.quiet"].num_rows == 0
    with pytest.raises(KeyError, match=r"no relation .*; there is .*public\.orders"):
        decoded["orders"]
    # It is true without changes, as it was before it had a length.
    assert pgo.decode([])
    assert len(pgo.decode([])) == 0


def test_tables_by_name() -> None:
    decoded = pgo.decode(stream())
    tables = decoded.tables
    assert list(tables) == ["public.orders", '"Sales"."Order Lines"']
    assert len(tables) == 2
    assert {name: table.num_rows for name, table in tables.items()} == {
        "public.orders": 2,
        '"Sales"."Order Lines"': 1,
    }
    assert tables['Public."orders"'].column("paid").to_pylist() == [None, True]
    assert 'Public."orders"' in tables
    for absent in ("public.quiet", "orders", 16401, None):
        assert absent not in tables
    with pytest.raises(KeyError, match=r"no relation .*public\.quiet.* here; there is"):
        tables["public.quiet"]
    assert dict(pgo.decode([]).tables) == {}


def test_of_many_names_an_error_has_the_nearest() -> None:
    decoder = pgo.Decoder()
    decoder.decode(
        [encode_relation(RelationSpec(number, "shop", f"table_{number}", ())) for number in range(1, 10_001)]
        + [encode_relation(ORDERS), encode_relation(RelationSpec(1, "archive", "orders", ()))]
    )
    for wanted, nearest in (
        ("public.order", "public.orders"),
        ("orders", "archive.orders, public.orders"),
        ("shop.table_77x", "shop.table_77"),
    ):
        for ask in (decoder.catalog.named, decoder.decode([]).table):
            with pytest.raises(KeyError) as caught:
                ask(wanted)
            said = caught.value.args[0]
            assert said.startswith(f"no relation {wanted!r} here; of 10,002 names the nearest: {nearest}")
            assert len(said) < 200
    with pytest.raises(
        KeyError, match=r"no relation 77777 here; there is archive\.orders, .* and 9,997 more"
    ):
        decoder.catalog.named(77777)
    with pytest.raises(KeyError, match="and 9,997 more"):
        decoder.catalog.named("§" * 1000)


# ---- the Arrow PyCapsule protocol ----------------------------------------------------------------------------------


def test_pyarrow_takes_a_batch() -> None:
    decoded = pgo.decode(stream())
    for change in decoded:
        assert pa.record_batch(change).equals(change.batch)
        assert pa.table(change).equals(pa.table(change.batch))
        assert pa.RecordBatchReader.from_stream(change).read_all().equals(pa.table(change.batch))
        assert pa.schema(change).equals(change.batch.schema, check_metadata=True)
    # Not a copy.
    first = decoded.changes[0]
    ids = [each.column("id").buffers()[1].address for each in (pa.record_batch(first), first.batch)]
    assert ids[0] == ids[1]
    wanted = pa.schema(
        [field.with_type(pa.int64()) if field.name == "id" else field for field in first.batch.schema]
    )
    assert pa.record_batch(first, schema=wanted).column("id").type == pa.int64()


def test_duckdb_takes_batches_and_tables() -> None:
    decoded = pgo.decode(stream())
    change, orders = decoded.changes[0], decoded["public.orders"]
    with duckdb.connect() as connection:
        connection.register("batch", pa.table(change))
        assert connection.sql("SELECT id, note FROM batch").fetchall() == [(1, "first")]
        # By the names of the variables, as people write it: the first by the protocol alone.
        assert connection.sql("SELECT id, note FROM change").fetchall() == [(1, "first")]
        assert connection.sql("SELECT sum(id) FROM orders WHERE _change_type = 'insert'").fetchall() == [(3,)]
    assert change.batch.num_rows + orders.num_rows == 3


def test_pandas_takes_batches_and_tables() -> None:
    decoded = pgo.decode(stream())
    frames = [pa.table(decoded.changes[0]).to_pandas()]
    if hasattr(pd.DataFrame, "from_arrow"):  # since pandas 3
        frames.append(pd.DataFrame.from_arrow(decoded.changes[0]))
    for frame in frames:
        assert frame[["id", "note"]].values.tolist() == [[1, "first"]]
    assert decoded["public.orders"].to_pandas()["id"].tolist() == [1, 2]


def test_polars_takes_batches_and_tables() -> None:
    decoded = pgo.decode(stream())
    frame = pl.DataFrame(decoded.changes[0])
    assert frame.select("id", "note").rows() == [(1, "first")]
    assert pl.DataFrame(decoded["public.orders"])["id"].to_list() == [1, 2]
    assert isinstance(orders := pl.from_arrow(decoded["public.orders"]), pl.DataFrame)
    assert orders.equals(pl.DataFrame(decoded["public.orders"]))


def test_the_page_shows_other_libraries() -> None:
    page = (DOCS / "decoding.md").read_text().partition("### In other libraries\n")[2]
    match = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert match is not None
    orders = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23), ColumnSpec("amount", 23)))
    writer = Writer()
    wal = (
        writer.begin(7, 100, 0)
        + writer.change(orders, "insert", new=["1", "12"])
        + writer.commit(100, 108, 0)
    )
    names: dict[str, Any] = {"decoded": pgo.decode(wal), "duckdb": duckdb, "pa": pa}
    exec(compile(match[1], "decoding.md", "exec"), names)
    assert names["frame"]["amount"].tolist() == [12]
    assert names["total"] == [(12,)]
    assert names["batch"].num_rows == 1


# ---- what a person sees --------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\x1b[31m&\"'"


class _Checker(html.parser.HTMLParser):
    """Collects the tags, and fails for one that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def sound(text: str) -> str:
    """Checks HTML: closed tags, and only those of tables. Returns it without styles."""
    checker = _Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    assert checker.tags <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert text.isprintable()
    return text.replace(' style="text-align: left"', "")


def test_short_texts() -> None:
    decoder = pgo.Decoder()
    assert repr(decoder) == "<Decoder: transactions as_sent, next message 0, open transactions 0, tables 0>"
    decoded = decoder.decode(stream())
    assert repr(decoded) == '<Decoded: 3 rows of public.orders, "Sales"."Order Lines">'
    assert repr(decoded.changes[1]) == '<RelationBatch: 1 row of "Sales"."Order Lines">'
    assert (
        repr(decoded.tables) == '<tables with changes: public.orders (2 rows), "Sales"."Order Lines" (1 row)>'
    )
    assert repr(pgo.decode([])) == "<Decoded: 0 rows of no relation>"
    assert repr(pgo.decode([]).tables) == "<tables with changes: none>"
    assert repr(decoder.catalog) == 'Catalog(public.orders, "Sales"."Order Lines", public.quiet)'
    assert repr(pgo.Catalog()) == "Catalog()"
    relation = decoder.catalog.relations[0]
    assert repr(relation) == "<Relation public.orders, oid 16401: id int4 key, note text, at timestamptz>"
    assert repr(decoder.catalog.relations[-1]) == "<Relation public.quiet, oid 16403: no columns>"
    decoder.decode([encode_stream_start(9, True)])
    assert repr(decoder) == "<Decoder: transactions as_sent, next message 10, open transactions 1, tables 3>"
    decoder.close()
    assert repr(decoder) == "<Decoder: transactions as_sent, state closed>"


def test_tables_of_html() -> None:
    decoder = pgo.Decoder(pgo.Options(transactions="committed"))
    decoded = decoder.decode(stream())
    assert "<td>public.orders</td><td>2</td><td>2</td>" in sound(decoded._repr_html_())
    assert "transactions 2, outcomes 1, truncates 0, messages 0, rejects 0" in decoded._repr_html_()
    assert "<td>public.orders</td><td>2</td>" in sound(decoded.tables._repr_html_())  # type: ignore[attr-defined]
    assert "<td>public.orders</td><td>16401</td><td>2</td><td>4</td><td>default</td>" in sound(
        decoder.catalog._repr_html_()
    )
    assert "<td>at</td><td>timestamptz</td><td></td>" in sound(decoder.catalog.relations[0]._repr_html_())
    assert "<td>tables</td><td>3</td>" in sound(decoder._repr_html_())


def test_hostile_names_and_many_tables() -> None:
    writer = Writer()
    wal = writer.begin(7, 100, 0)
    for number in range(1, 10_001):
        spec = RelationSpec(number, "s", f"{HOSTILE}{number}", ())
        # Few have changes: each makes a batch of its own.
        wal += writer.change(spec, "insert", new=[]) if number <= 500 else writer.relation(spec)
    wide = RelationSpec(20_000, HOSTILE, HOSTILE, tuple(ColumnSpec(f"{HOSTILE}{k}", 25) for k in range(1600)))
    wal += writer.change(wide, "insert", new=[None] * 1600)
    decoder = pgo.Decoder()
    decoded = decoder.decode(wal + writer.commit(100, 108, 0))
    for thing in (decoded, decoded.tables, decoder, decoder.catalog, decoder.catalog.relations[-1]):
        assert len(repr(thing)) < 1000
        assert repr(thing).isprintable()
        assert "<script>" not in sound(thing._repr_html_())
        assert len(thing._repr_html_()) < 50_000
    assert "and 9,996 more" in repr(decoder.catalog)
    assert "<p>and 9,951 more</p>" in decoder.catalog._repr_html_()
    assert "<p>and 1,400 more</p>" in decoder.catalog.relations[-1]._repr_html_()


def test_a_decoder_that_works_is_shown_at_once() -> None:
    decoder = pgo.Decoder()
    with decoder._lock:
        seen: list[str] = []
        thread = threading.Thread(target=lambda: seen.append(repr(decoder)))
        thread.start()
        thread.join(60)
    assert seen == ["<Decoder: transactions as_sent, state busy>"]
