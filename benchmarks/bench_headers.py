"""Stages 1 and 2, scan and tag, over whole corpora; and `tag()`, which writes what they found."""

from __future__ import annotations

import time
from typing import Any

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
