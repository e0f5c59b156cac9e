"""`Options(tables=...)`: the chosen tables are what they are without it, and the rows of others are not looked into."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from support.strategies import MODES, streams
from support.streams import ENRICHED, Stream

ORDERS = RelationSpec(16384, "public", "orders", (ColumnSpec("id", 23, key=True),))
NOTES = RelationSpec(16385, "Shop", "Notes", (ColumnSpec("id", 23, key=True), ColumnSpec("on", 1082)))


def _wal(on: str = "2026-01-01") -> list[bytes]:
    writer = Writer()
    wal = writer.begin(7, 100, 0)
    for id in ("1", "2"):
        wal += writer.change(ORDERS, "insert", new=[id])
        wal += writer.change(NOTES, "insert", new=[id, on])
    wal += writer.truncate([ORDERS, NOTES])
    return wal + writer.commit(100, 108, 0)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams(), MODES, st.integers(1, 3), st.data())
def test_chosen_tables_are_what_they_are_without_the_choice(
    stream: Stream, mode: Any, threads: int, data: st.DataObject
) -> None:
    plain = pgo.Options(transactions=mode, on_error="quarantine")
    whole = pgo.Decoder(plain, catalog=ENRICHED).decode(stream.payloads)
    there = sorted({each.relation.qualified_name for each in whole.changes})
    chosen = data.draw(st.sets(st.sampled_from([*there, "public.none"]), min_size=1))
    options = pgo.Options(transactions=mode, on_error="quarantine", tables=chosen, threads=threads)
    found = pgo.Decoder(options, catalog=ENRICHED).decode(stream.payloads)
    expected = [each for each in whole.changes if each.relation.qualified_name in chosen]
    assert [each.relation for each in found.changes] == [each.relation for each in expected]
    for got, wanted in zip(found.changes, expected, strict=True):
        assert got.batch.schema.equals(wanted.batch.schema, check_metadata=True)
        assert got.batch.equals(wanted.batch) or str(got.batch.to_pydict()) == str(wanted.batch.to_pydict())
    assert found.transactions.equals(whole.transactions)
    assert found.truncates.equals(whole.truncates)


@pytest.mark.parametrize("tables", [["public.orders"], [16384], {"public.orders", 7}])
def test_names_and_oids(tables: Any) -> None:
    wal = _wal()
    options = pickle.loads(pickle.dumps(pgo.Options(tables=tables)))
    decoded = pgo.decode(wal, options=options)
    assert [each.relation.qualified_name for each in decoded.changes] == ["public.orders"]
    assert decoded.truncates.column("relations").to_pylist() == [[16384, 16385]]
    tagged, state = pgo.tag(wal)
    (again,) = pgo.decode_tagged(tagged, state.catalog, options).changes
    assert again.batch.equals(decoded.changes[0].batch)
    with pytest.raises(KeyError, match=r"Options\(tables=...\) leaves out"):
        decoded.table('"Shop"."Notes"')
    with pytest.raises(KeyError, match="nothing"):
        decoded.table("public.nothing")


def test_rows_of_other_tables_are_not_read() -> None:
    damaged = _wal(on="no date")
    with pytest.raises(pgo.DecodeError):
        pgo.decode(damaged)
    decoded = pgo.decode(damaged, options=pgo.Options(tables=["public.orders"]))
    assert decoded.table("public.orders").column("id").to_pylist() == [1, 2, None]


def test_what_the_option_may_not_be() -> None:
    with pytest.raises(TypeError, match="tables must be a list of names"):
        pgo.Options(tables="public.orders")
    with pytest.raises(ValueError, match="tables must name at least one table"):
        pgo.Options(tables=[])
    with pytest.raises(ValueError, match=r"tables: 'a\.b\.c' is not a qualified name"):
        pgo.Options(tables=["a.b.c"])
    with pytest.raises(TypeError):
        pgo.Options(tables=[1.5])  # type: ignore[list-item]
