"""Stages 1 and 2, scan and tag, on whole corpora; `tag()`, which writes their results; and `unframe()`."""

from __future__ import annotations

import struct
import time
from typing import Any

import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from benchmarks.corpora import Corpus
from pgoutput_fast._core.bench import time_headers

pytestmark = pytest.mark.benchmark(timer=time.process_time)


def test_scan_and_tag(benchmark: Any, corpus: Corpus) -> None:
    benchmark.extra_info["bytes"] = corpus.nbytes
    scan, tag, changes = benchmark(time_headers, corpus.payloads)
    assert scan > 0
    assert tag > 0
    assert changes == sum(table.num_rows for table in corpus.tables.values())


def test_tag_call(benchmark: Any, corpus: Corpus) -> None:
    benchmark.extra_info["bytes"] = corpus.nbytes
    tagged, _ = benchmark(pgo.tag, corpus.payloads)
    assert tagged.column("payload").equals(corpus.payloads)


def test_unframe_call(benchmark: Any, corpus: Corpus) -> None:
    benchmark.extra_info["bytes"] = corpus.nbytes
    head = b"w" + struct.pack(">QQq", 1, 1, 0)
    frames = pa.array([head + payload for payload in corpus.payloads.to_pylist()], pa.binary())
    unframed = benchmark(pgo.unframe, frames)
    assert unframed.payloads.equals(corpus.payloads)
