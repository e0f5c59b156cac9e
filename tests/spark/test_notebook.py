"""The notebook of docs/examples.md, cell by cell, on a real server and a real Spark; and a catalog of the newest segment."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, segment_catalog, write_segment
from support import pg
from support.paths import DOCS

PAGE = (DOCS / "examples.md").read_text().partition("\n## A notebook, from a server to Spark\n")[2]


@pytest.mark.slow
def test_the_notebook_runs_and_prints_what_it_says(servers: pg.Servers, spark: Any, tmp_path: Path) -> None:
    if not pg.installations():
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(pg.installations())])
    names: dict[str, Any] = {"dsn": database.dsn, "directory": tmp_path / "segments", "spark": spark}
    names["lake"] = tmp_path / "lake"
    names["directory"].mkdir()
    cells = re.findall(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", PAGE, re.DOTALL)
    assert len(cells) == 9
    try:
        for cell, printed in cells:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(cell, "examples.md", "exec"), names)
            assert out.getvalue().rstrip("\n") == printed.rstrip("\n")
    finally:
        if "connection" in names:
            names["connection"].close()
        database.drop()
    assert len(names["there"]) == 1004


@pytest.mark.slow
def test_the_newest_segment_has_the_whole_catalog(spark: Any, tmp_path: Path) -> None:
    spec = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True),))
    writer, state = Writer(), None
    for wal in (
        [*writer.begin(7, 100, 0), *writer.change(spec, "insert", new=["1"]), *writer.commit(100, 108, 0)],
        [*writer.begin(8, 200, 0), *writer.change(spec, "insert", new=["2"]), *writer.commit(200, 208, 0)],
    ):
        tagged, state = pgo.tag(wal, state)
        write_segment(tmp_path, tagged, state, source=Source("1", "shop", "slot"))
    newest = segment_catalog(max(tmp_path.glob("*.parquet")))  # names of segments sort as the stream does
    orders = pgspark.changes(spark.read.parquet(str(tmp_path)), "public.orders", catalog=newest)
    assert sorted(row["id"] for row in orders.collect()) == [1, 2]
