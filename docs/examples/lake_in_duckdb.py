"""Ask DuckDB about segments, and about the lake of a mirror.

    python lake_in_duckdb.py LAKE

LAKE is the target of a mirror with tables in Delta. Its segments are in LAKE/_segments.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

import pgoutput_fast as pgo
from pgoutput_fast.mirror import fresh, points
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog, segment_outcomes


def sizes_by_table(segments: Path) -> list[tuple[str, int, int]]:
    """How many changes of each table there are, and their bytes. DuckDB reads the files; nothing is decoded."""
    names = {each.oid: each.qualified_name for each in segment_catalog(segments).relations}
    files = [str(each.path) for each in list_segments(segments)]
    rows = duckdb.sql(
        "SELECT relation, count(*), sum(octet_length(payload)) FROM read_parquet($files) "
        "WHERE kind IN (ord('I'), ord('U'), ord('D')) GROUP BY relation",
        params={"files": files},
    ).fetchall()
    return sorted((names[relation], count, size) for relation, count, size in rows)


def changes(segments: Path, table: str) -> pa.Table:
    """The committed changes of a table in segments. DuckDB takes the result by the name of your variable."""
    catalog = segment_catalog(segments)
    relations = [each.oid for each in catalog.named(table)]
    tagged = pa.concat_tables(
        read_segment(each.path, relations=relations) for each in list_segments(segments)
    )
    options = pgo.Options(transactions="committed", tables=[table])
    return pgo.decode_tagged(tagged, catalog, options, outcomes=segment_outcomes(segments)).table(table)


def history_files(lake: Path, table: str) -> list[str]:
    """The Parquet files of a history. Files of a current table may also have rows that are marked deleted."""
    return [each.removeprefix("file://") for each in DeltaTable(lake / "history" / table).file_uris()]


def main() -> None:
    lake = Path(sys.argv[1])
    print("segments:", sizes_by_table(lake / "_segments"))
    orders = changes(lake / "_segments", "public.orders")  # DuckDB finds the variable by its name
    print(
        "changes:", duckdb.sql("SELECT _change_type, count(*) FROM orders GROUP BY 1 ORDER BY 1").fetchall()
    )

    # The rows at the newest point. Other tables that are read at this position belong to them.
    orders = fresh(lake, "public.orders", ["id", "note"], points(lake)[-1].position)
    print("current:", duckdb.sql("SELECT id, note FROM orders ORDER BY id").fetchall())

    history = history_files(lake, "public.orders")
    query = "SELECT _change_type, id, note FROM read_parquet($1) WHERE id = 1 ORDER BY _commit_lsn, _seq"
    print("history:", duckdb.sql(query, params=[history]).fetchall())

    # The current table, and what has come since.
    orders = fresh(lake, "public.orders", ["id", "note"])  # noqa: F841
    print("fresh:", duckdb.sql("SELECT id, note FROM orders ORDER BY id").fetchall())


if __name__ == "__main__":
    main()
