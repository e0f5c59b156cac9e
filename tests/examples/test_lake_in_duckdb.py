"""docs/examples/lake_in_duckdb.py, over the lake of a mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_fast.mirror import Mirror
from support import pg
from support.examples import run, said, shop


@pytest.mark.unsanitized
def test_it_prints_what_the_page_says(servers: pg.Servers, tmp_path: Path) -> None:
    with shop(servers, "to_lake") as database:
        for statements in (
            (),
            (
                "INSERT INTO orders VALUES (1, 'new'), (2, 'new')",
                "UPDATE orders SET note = 'paid' WHERE id = 1",
                "DELETE FROM orders WHERE id = 2",
            ),
        ):
            database.execute("SELECT 1", *statements)
            with Mirror(database.dsn, "to_lake", ["shop"], tmp_path) as mirror:
                mirror.run(until_lsn="now")
    assert run("lake_in_duckdb.py", tmp_path) == said("lake_in_duckdb.py")
