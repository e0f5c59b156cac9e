"""The programs of docs/examples that need a Spark."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support import pg
from support.examples import EXAMPLES, load, said, shop
from support.message_files import write_segments
from support.sessions import java_environment
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


@pytest.mark.exhaustive
def test_a_declarative_pipeline(tmp_path: Path) -> None:
    """Two segments have an order each. Both tables have what is in them."""
    environment = java_environment()
    pytest.importorskip("pyspark.pipelines", reason="declarative pipelines need Spark 4.1")
    for each in (EXAMPLES / "pipeline").iterdir():
        (tmp_path / each.name).write_text(each.read_text().replace("/tmp/", f"{tmp_path}/"))
    write_segments(tmp_path / "segments", 2)
    # pip puts it beside Python, which a test need not have on its PATH.
    command = shutil.which("spark-pipelines", path=str(Path(sys.executable).parent))
    assert command is not None
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [command, "run", "--spec", "spark-pipeline.yml"],
        cwd=tmp_path,
        env={**os.environ, **environment, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    changes, counts = (
        pq.ParquetDataset(tmp_path / "spark-warehouse" / name).read()
        for name in ("order_changes", "orders_by_note")
    )
    changes = changes.select(["_change_type", "id", "note"]).to_pylist()
    assert sorted((each["_change_type"], each["id"]) for each in changes) == [
        ("insert", 0), ("insert", 1), ("truncate", None)
    ]  # fmt: skip
    assert counts.to_pylist() == [{"note": "x" * 50, "count": 2}]
