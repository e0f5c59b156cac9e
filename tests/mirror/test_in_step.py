"""Tables in step: each version of each table belongs to a point, and none is left behind."""

from __future__ import annotations

import deltalake
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture
from pgoutput_fast.mirror import MirrorError, at, points
from pgoutput_fast.mirror.service import run
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions
from support import transfers
from support.capturing import drop_when_free
from support.forms import and_exhaustive
from support.mirrors import (
    Following,
    Place,
    current_of,
    expect_equal,
    expect_replayed,
    expect_same_total,
    history_of,
    lose_rows,
    place,
)

__all__ = ["place"]

TABLES = ["public.left_accounts", "public.right_accounts"]


def _newest(place: Place) -> dict[str, int | None]:
    return {
        table: open_current("delta", open_store(place.target), table, TableOptions()).version()
        for table in TABLES
    }


def _prepare(place: Place, *more: str) -> None:
    place.database.execute(
        *transfers.SCHEMA, *more, f"CREATE PUBLICATION mirrored FOR TABLE {', '.join(TABLES)}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("columns", and_exhaustive(["c"], ["cd"]))
def test_transfers_while_a_table_is_loaded_again(place: Place, columns: str) -> None:
    """The other table waits for it. So each of its versions has the same total as a version of the loaded one."""
    _prepare(place)
    with place.mirror(seconds=0.2, in_step=True, keep_points=10_000) as mirror:
        mirror.run(until_lsn="now")
        with transfers.writing(place.database, 2), Following(mirror) as following:
            for column in columns:
                known = len(points(place.target))
                following.until(lambda known=known: len(points(place.target)) > known + 1)
                place.database.execute(
                    f"ALTER TABLE left_accounts ADD COLUMN {column} float8 DEFAULT random()"
                )
                loaded = _loads(place)
                following.until(lambda loaded=loaded: _loads(place) > loaded)
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    found = points(place.target)
    expect_same_total(place, found)
    assert at(place.target) == _newest(place)
    # A load changes only the table that it loads. Each other commit is in a point.
    versions = {each.versions["public.right_accounts"] for each in found}
    assert versions == set(range(min(versions), max(versions) + 1))
    for table in TABLES:
        expect_equal(place, table)
        expect_replayed(place, table, ["id"])


def _loads(place: Place) -> int:
    """How often the history of a table says that it was loaded again."""
    rows = deltalake.DeltaTable(str(place.target / "history" / TABLES[0])).to_pyarrow_table(
        columns=["_change_type"]
    )
    return rows["_change_type"].to_pylist().count("truncate")


def test_a_table_that_cannot_go_on_stops_all(place: Place) -> None:
    """No table has a part of what committed. When the table is loaded again, all go on."""
    _prepare(
        place,
        "ALTER TABLE right_accounts ADD big text",
        "ALTER TABLE right_accounts ALTER big SET STORAGE EXTERNAL",
        "UPDATE right_accounts SET big = repeat('x', 5000)",
    )
    with place.mirror(in_step=True) as mirror:
        mirror.run(until_lsn="now")
    lose_rows(place, "public.right_accounts")
    before = _newest(place)
    transfers.write(place.database, 1, 10)
    with place.mirror(in_step=True) as mirror:
        for _ in range(2):
            with pytest.raises(
                MirrorError, match=r"none is changed while one is stopped: public\.right_accounts: .*--reload"
            ):
                mirror.run(until_lsn="now")
            assert _newest(place) == before
        mirror.reload("public.right_accounts")
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    assert at(place.target) == _newest(place)
    assert (
        sum(sum(current_of(place.target, table)["balance"].to_pylist()) for table in TABLES)
        == transfers.TOTAL
    )
    for table in TABLES:
        expect_equal(place, table)
        expect_replayed(place, table, ["id"])


@pytest.mark.slow
def test_a_round_waits_for_a_table_that_must_be_loaded(place: Place) -> None:
    """One transaction changes both tables, and alters the replica identity of one of them in between."""
    _prepare(place)
    with place.mirror(in_step=True) as mirror:
        mirror.run(until_lsn="now")
        before = _newest(place)
        place.database.execute(
            "UPDATE left_accounts SET balance = balance - 1 WHERE id = 1;"
            "ALTER TABLE left_accounts REPLICA IDENTITY FULL;"
            "UPDATE left_accounts SET balance = balance - 1 WHERE id = 2;"
            "UPDATE right_accounts SET balance = balance + 2 WHERE id = 1"
        )
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    assert _loads(place) == 1
    assert at(place.target) == _newest(place) != before
    expect_same_total(place, points(place.target))
    for table in TABLES:
        expect_equal(place, table)
        expect_replayed(place, table, ["id"])


@pytest.mark.slow
def test_a_repair_takes_all_segments_though_a_table_is_stopped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So much waits that some is applied before all segments are read."""
    _prepare(
        place,
        "ALTER TABLE right_accounts ADD big text",
        "ALTER TABLE right_accounts ALTER big SET STORAGE EXTERNAL",
        "UPDATE right_accounts SET big = repeat('x', 5000)",
    )
    place.run(in_step=True)
    lose_rows(place, "public.right_accounts")
    transfers.write(place.database, 1, 10)
    with place.mirror(in_step=True) as mirror, pytest.raises(MirrorError, match="one is stopped"):
        mirror.run(until_lsn="now")
    monkeypatch.setattr(run, "_MOST_ROWS", 5)
    for n in range(3):
        transfers.write(place.database, 2 + n, 10)
        Capture(place.database.dsn, place.slot, ["mirrored"], place.target / "_segments").run(until_lsn="now")
    segments = str(place.target / "_segments")
    sent = pgo.decode_tagged(
        pa.concat_tables([read_segment(each.path) for each in list_segments(segments)]),
        segment_catalog(segments),
    )
    updates = sum(each.batch.num_rows for each in sent.changes if each.relation.name == "left_accounts")
    drop_when_free(place.database.dsn, place.slot)
    with place.mirror(in_step=True) as mirror:
        mirror.repair()
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    seqs = history_of(place.target, TABLES[0]).column("_seq").to_pylist()
    assert sum(each >= 0 for each in seqs) == updates
    for table in TABLES:
        expect_equal(place, table)
