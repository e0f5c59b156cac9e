"""docs/examples/kafka/in_python.py, over what a real server sent."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from support import pg
from support.examples import load, run, said, shop
from support.topics import CHANGES, topic_of


def test_it_prints_what_the_page_says(servers: pg.Servers, tmp_path: Path) -> None:
    with shop(servers) as database:
        topic = topic_of(database.capture(CHANGES, "FOR TABLE orders"))
    pq.write_table(topic, tmp_path / "topic.parquet")
    saved = tmp_path / "state.json"
    assert run("kafka/in_python.py", tmp_path / "topic.parquet", saved) == said("kafka/in_python.py")
    assert run("kafka/in_python.py", tmp_path / "topic.parquet", saved) == ""


def test_a_topic_may_be_cut_anywhere(servers: pg.Servers, tmp_path: Path) -> None:
    with shop(servers) as database:
        topic = topic_of(database.capture(CHANGES, "FOR TABLE orders"))
    for cut in range(topic.num_rows + 1):
        saved, printed = tmp_path / f"{cut}.json", ""
        for rows in (
            topic.sort_by("offset").slice(0, cut),
            topic,
        ):  # the second file has the first rows again
            pq.write_table(rows, tmp_path / "topic.parquet")
            printed += run("kafka/in_python.py", tmp_path / "topic.parquet", saved)
        assert printed.replace("public.orders\n", "") == said("kafka/in_python.py").replace(
            "public.orders\n", ""
        )


def test_offsets_may_be_missing_and_partitions_may_not(servers: pg.Servers) -> None:
    with shop(servers) as database:
        topic = topic_of(database.capture(CHANGES, "FOR TABLE orders"), step=3)
    decode = load("kafka/in_python.py")["decode_topic"]
    decoded, state = decode(topic, None)
    assert decoded["public.orders"].column("_seq").to_pylist() == [6, 9, 18]
    assert state.next_seq == 3 * (topic.num_rows - 1) + 1
    other = topic.set_column(3, "partition", [list(range(topic.num_rows))])
    with pytest.raises(ValueError, match="need one partition of one topic"):
        decode(other, None)
