"""Stages 3 to 5, slice, convert and assemble, as they run in a decode. Their times are in `extra_info`."""

from __future__ import annotations

import time
from typing import Any

import pytest

import pgoutput_fast as pgo
from benchmarks.corpora import Corpus
from benchmarks.report import check_stages
from pgoutput_fast._core.bench import time_stages

pytestmark = pytest.mark.benchmark(timer=time.process_time)


def test_stages(benchmark: Any, corpus: Corpus) -> None:
    check_stages(corpus)
    seconds, _ = benchmark(time_stages, corpus.payloads, pgo.Options())
    benchmark.extra_info.update(bytes=corpus.nbytes, **seconds)
