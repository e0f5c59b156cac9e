"""What a user meets first: tables without rows, rows of a query in place of payloads, errors that say what they are of."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer, encode_relation

# --- tables without rows ------------------------------------------------------------------------------------


def _orders(*columns: tuple[str, int]) -> RelationSpec:
    return RelationSpec(16401, "public", "orders", tuple(ColumnSpec(*each) for each in columns))


@pytest.mark.parametrize("transactions", ["as_sent", "committed"])
def test_a_table_that_is_known_is_empty_where_nothing_changed(transactions: Any) -> None:
    specs = [_orders(("id", 23), ("note", 25)), _orders(("id", 20), ("at", 1184))]
    options = pgo.Options(transactions=transactions)
    decoder, writer = pgo.Decoder(options), Writer()
    wal = writer.begin(7, 100, 0)
    for spec, row in zip(specs, (["1", "x"], ["2", None]), strict=True):
        wal += writer.change(spec, "insert", new=row)
    full = decoder.decode(wal + writer.commit(100, 108, 0)).table("public.orders")
    assert full.num_rows == 2
    for nothing in (decoder.decode([]), decoder.decode(writer.begin(8, 200, 0) + writer.commit(200, 208, 0))):
        for table in ("public.orders", 'Public."orders"', 16401):
            empty = nothing.table(table)
            assert empty.num_rows == 0
            assert empty.schema.equals(full.schema, check_metadata=True)
        with pytest.raises(KeyError, match=r"no relation 'public\.other' here; there is public\.orders"):
            nothing.table("public.other")
        with pytest.raises(KeyError, match=r"no relation 1 here; there is public\.orders"):
            nothing.table(1)
    # In a process that goes on, too: the state has the catalog.
    later = pgo.Decoder(options, pgo.StreamState.from_json(decoder.state.to_json())).decode([])
    assert later.table("public.orders").schema.equals(full.schema, check_metadata=True)


@pytest.mark.parametrize("transactions", ["as_sent", "committed"])
def test_a_table_that_waits_for_its_commit_is_empty(transactions: Any) -> None:
    writer = Writer(2, streaming="on")
    wal = (
        writer.stream_start(9)
        + writer.change(_orders(("id", 23)), "insert", new=["1"], xid=9)
        + writer.stream_stop()
    )
    table = pgo.decode(wal, options=pgo.Options(transactions=transactions)).table("public.orders")
    assert (table.num_rows, table.schema.field("id").type) == (
        1 if transactions == "as_sent" else 0,
        pa.int32(),
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transactions": "committed"},
        {"plain": True},
        {"on_error": "quarantine"},
        {"tables": ["public.no"]},
    ],
)
def test_a_result_goes_to_another_process(options: Any) -> None:
    writer = Writer()
    wal = writer.begin(7, 100, 0) + writer.change(
        _orders(("id", 23), ("xs", 1007)), "insert", new=["1", "{1,2}"]
    )
    wal += writer.message(90, "prefix", b"content") + writer.truncate([_orders(("id", 23), ("xs", 1007))])
    decoder = pgo.Decoder(pgo.Options(**options))
    for found in (decoder.decode(wal + writer.commit(100, 108, 0)), decoder.decode([])):
        sent = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(found))))
        assert [each.relation for each in sent] == [each.relation for each in found]
        assert [each.batch for each in sent] == [each.batch for each in found]
        for name in ("transactions", "outcomes", "truncates", "messages", "rejects"):
            assert getattr(sent, name).equals(getattr(found, name))
        assert repr(sent) == repr(found)
        if "tables" not in options:
            assert sent.table("public.orders").equals(found.table("public.orders"), check_metadata=True)


def test_what_a_decoder_knew_then() -> None:
    """A later call, even one that fails, makes nothing known to an earlier one's outcome."""
    decoder, writer = pgo.Decoder(), Writer()
    early = decoder.decode(writer.begin(7, 100, 0))
    change = writer.change(_orders(("id", 23)), "insert", new=["1"])
    with pytest.raises(pgo.DecodeError):
        decoder.decode([*change, b"X"])
    decoder.decode(change)
    with pytest.raises(KeyError, match="there is none"):
        early.table("public.orders")


def test_an_empty_table_of_a_given_catalog_and_of_options() -> None:
    catalog = pgo.tag([encode_relation(_orders(("id", 23), ("note", 25)))])[1].catalog
    pinned = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    for options, names in (
        (pgo.Options(metadata_prefix="pg_"), ["id", "note"]),
        (pgo.Options(columns={"public.orders": ["note"]}), ["note"]),
        (pgo.Options(schemas={"public.orders": pinned}), ["id"]),
    ):
        table = pgo.Decoder(options, catalog=catalog).decode([]).table("public.orders")
        assert table.schema.names[0] == f"{options.metadata_prefix}change_type"
        assert (table.schema.names[11:], table.num_rows) == (names, 0)
    tagged = pgo.tag([])[0]
    assert pgo.decode_tagged(tagged, catalog).table(16401, schema=pinned).schema.names[11:] == ["id"]


def test_an_empty_table_of_versions_that_no_schema_holds() -> None:
    """It is that of the version described last; with rows of both it is an error."""
    decoder, writer = pgo.Decoder(), Writer()
    decoder.decode(writer.begin(7, 100, 0))
    wal = writer.change(_orders(("id", 23)), "insert", new=["1"]) + writer.change(
        _orders(("id", 25)), "insert", new=["x"]
    )
    with pytest.raises(ValueError, match="one table cannot have both"):
        decoder.decode(wal).table("public.orders")
    assert decoder.decode([]).table("public.orders").schema.field("id").type == pa.string()


# --- what is passed in place of payloads --------------------------------------------------------------------

ROWS = [("0/10", 7, memoryview(data)) for data in Writer().begin(7, 100, 0)]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        [tuple(row[::2]) for row in ROWS],
        [list(row) for row in ROWS],
        [dict(zip(("lsn", "xid", "data"), row, strict=True)) for row in ROWS],
        tuple(ROWS),
    ],
)
def test_rows_of_a_query_are_refused_with_a_line_that_works(rows: Any) -> None:
    with pytest.raises(TypeError, match="iterable of bytes") as caught:
        pgo.decode(rows)
    found = re.search(r"pass (payloads=.*\])$", str(caught.value))
    assert found is not None, caught.value
    out = eval(f"pgo.decode({found[1]})", {"pgo": pgo, "rows": rows})
    assert out.transactions.column("kind").to_pylist() == ["begin"]
    assert "lsn=[row[" in found[1]


def test_other_tuples_are_refused_without_a_guess() -> None:
    for row in ((1, 2), (), (b"a", b"b")):
        with pytest.raises(TypeError, match=r"there is a tuple among them$"):
            pgo.decode([row])


# --- kinds of messages in errors ----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("transactions", ["as_sent", "committed"])
def test_errors_name_the_kind_of_message(transactions: Any, threads: int) -> None:
    writer = Writer()
    spec = _orders(("id", 23), ("at", 1083))
    whole = writer.begin(7, 100, 0) + writer.change(spec, "insert", new=["1", None])
    whole += writer.change(spec, "update", new=["1", None]) + writer.change(spec, "delete", key=["1", None])
    whole += writer.truncate([spec]) + writer.message(5, "p", b"content") + writer.commit(100, 108, 0)
    kinds = ["Begin", "Relation", "Insert", "Update", "Delete", "Truncate", "Message", "Commit"]
    options = pgo.Options(transactions=transactions, threads=threads)
    for place, kind in enumerate(kinds):
        with pytest.raises(pgo.DecodeError) as caught:
            pgo.decode([*whole[:place], whole[place][:-1], *whole[place + 1 :]], options=options)
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.kind, error.seq) == (kind, place)
        said = "a logical decoding message" if kind == "Message" else f"{kind} message"
        assert str(error).endswith(f"{said})")
        assert said not in error.reason
    for nothing in (b"", b"?", b"\\x42"):
        with pytest.raises(pgo.DecodeError) as caught:
            pgo.decode([nothing], options=options)
        assert caught.value.kind is None
    tagged, state = pgo.tag(whole)
    damaged = tagged.set_column(
        11, "payload", pa.array([each[:-1] for each in tagged.column("payload").to_pylist()], pa.binary())
    )
    for place, kind in enumerate(kinds[2:5], 2):
        with pytest.raises(pgo.DecodeError) as caught:
            pgo.decode_tagged(damaged.slice(place, 1), state.catalog)
        assert caught.value.kind == kind
