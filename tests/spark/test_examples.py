"""The programs of docs/examples that need a Spark."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from support import pg
from support.examples import load, said, shop
from support.topics import CHANGES, topic_of


def test_kafka_on_spark(servers: pg.Servers, spark: Any, tmp_path: Path) -> None:
    with shop(servers) as database:
        topic = topic_of(database.capture(CHANGES, "FOR TABLE orders"), step=2)
    rows = topic.num_rows
    for number, part in enumerate((topic.slice(0, rows // 2), topic.slice(rows // 2))):
        pq.write_table(part, tmp_path / f"{number}.parquet")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        load("kafka/on_spark.py")["main"](spark, str(tmp_path))
    assert printed.getvalue() == said("kafka/on_spark.py")
