"""Filters on the tables of a mirror: whatever statistics a file has, no reader leaves out rows."""

from __future__ import annotations

from decimal import Decimal

import deltalake
import pyarrow.compute as pc
import pytest

from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables import joining
from pgoutput_fast.tables.delta.table import DeltaTable
from support.appended import join_files
from support.filters import CREATE, EXTREMES, ORDINARY, expect_filters, forget_bounds
from support.mirrors import Place, place

__all__ = ["place"]


@pytest.fixture
def tables(place: Place) -> list[str]:
    place.database.execute(CREATE, ORDINARY, "CREATE PUBLICATION mirrored FOR TABLE t")
    place.run()
    place.database.execute("UPDATE t SET small = small", EXTREMES)
    place.run()
    return [f"{place.target}/{kind}/public.t" for kind in ("current", "history")]


@pytest.mark.slow
def test_every_reader_finds_the_rows(place: Place, tables: list[str]) -> None:
    for uri in tables:
        expect_filters(place.database, uri)
    # A column that the first files do not have.
    place.database.execute(
        "ALTER TABLE t ADD later numeric(10, 2), ADD spans int4range, ADD words text[]",
        "UPDATE t SET later = 5.25, spans = '[1,2)' WHERE id = 2",
    )
    place.run()
    expect_filters(place.database, tables[0])
    expect_filters(place.database, tables[1], without=["later", "spans"])


def test_files_are_left_out(place: Place, tables: list[str]) -> None:
    place.database.execute("DELETE FROM t WHERE id > 10", "INSERT INTO t (id, price) VALUES (30, 1000)")
    place.run()
    dataset = deltalake.DeltaTable(tables[0]).to_pyarrow_dataset()
    for expression in (pc.field("price") > Decimal("100.00"), pc.field("id") > 25, pc.field("note") == "no"):
        assert len(list(dataset.get_fragments(expression))) < len(dataset.files)


@pytest.mark.slow
def test_tables_of_earlier_versions(place: Place, tables: list[str]) -> None:
    for uri in tables:
        forget_bounds(uri)
        with pytest.raises(AssertionError):
            expect_filters(place.database, uri)
    place.run()
    for uri in tables:
        expect_filters(place.database, uri)
    number = deltalake.DeltaTable(tables[0]).version()
    place.run()
    assert deltalake.DeltaTable(tables[0]).version() == number


@pytest.mark.slow
def test_joined_files(place: Place, tables: list[str]) -> None:
    for uri in tables:
        deltalake.DeltaTable(uri).optimize.compact()
    place.run()
    for uri in tables:
        expect_filters(place.database, uri, foreign=True)


@pytest.mark.slow
def test_files_that_a_history_joins(place: Place, tables: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_MOST_ALIKE", 1)
    before = deltalake.DeltaTable(tables[1]).file_uris()
    join_files(DeltaTable(open_store(place.target), "history/public.t", "history"))
    assert len(deltalake.DeltaTable(tables[1]).file_uris()) < len(before)
    expect_filters(place.database, tables[1])
