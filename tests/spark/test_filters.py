"""Filters on Delta tables that Spark's tasks write: no reader leaves out rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgoutput_fast import spark as pgspark
from support import pg
from support.current_streams import Sent, batch_of
from support.filters import CREATE, EXTREMES, ORDINARY, expect_filters, forget_bounds
from support.mirrors import Place, place

__all__ = ["place"]


@pytest.fixture
def sent(place: Place, tmp_path: Path) -> Sent:
    database = place.database
    database.execute(CREATE)
    with database.slot("FOR ALL TABLES") as slot:
        database.execute(ORDINARY, "UPDATE t SET small = small", EXTREMES)
        payloads = [data for _, data in slot.peek(pg.all_options(database.version, binary=True))]
        return Sent(payloads, {"t": ["id"]}, tmp_path / "segments", 3)


@pytest.mark.slow
def test_current_sink(spark: Any, place: Place, sent: Sent, tmp_path: Path) -> None:
    def take(numbers: slice) -> None:
        sink = pgspark.current_sink(tmp_path)
        for number, (first, last) in list(enumerate(sent.batches()))[numbers]:
            sink(batch_of(spark, sent.directory, first, last), number)

    uri = f"{tmp_path}/current/public.t"
    take(slice(2))
    forget_bounds(uri)
    take(slice(2, None))
    expect_filters(place.database, uri)


@pytest.mark.slow
def test_write_tables(spark: Any, place: Place, sent: Sent, tmp_path: Path) -> None:
    uri = f"{tmp_path}/lake/public.t"

    def write() -> None:
        pgspark.write_tables(str(sent.directory), tmp_path / "lake", format="delta")

    write()
    expect_filters(place.database, uri)
    forget_bounds(uri)
    with pytest.raises(AssertionError):
        expect_filters(place.database, uri)
    write()
    expect_filters(place.database, uri)
