"""Whole calls: `decode` of each corpus and of ten messages, compared with the yardsticks on the same rows."""

from __future__ import annotations

import time
from typing import Any

import pytest

import pgoutput_fast as pgo
from benchmarks import corpora, yardsticks
from benchmarks.corpora import Corpus
from benchmarks.stages.conftest import SCALE

pytestmark = pytest.mark.benchmark(timer=time.process_time)


@pytest.mark.benchmark(group="corpus")
def test_memcpy(benchmark: Any, corpus: Corpus) -> None:
    benchmark.extra_info["bytes"] = corpus.nbytes
    benchmark(yardsticks.memcpy(corpus))


@pytest.mark.benchmark(group="corpus")
def test_decode(benchmark: Any, corpus: Corpus) -> None:
    benchmark.extra_info["bytes"] = corpus.nbytes
    out = benchmark(pgo.decode, corpus.payloads)
    assert sum(each.batch.num_rows for each in out.changes) == sum(t.num_rows for t in corpus.tables.values())


@pytest.mark.benchmark(group="corpus")
def test_csv_reader(benchmark: Any, wide_text: Corpus) -> None:
    truth, cells = wide_text.tables["public.wide"], corpora.wide_cells(SCALE)
    read = yardsticks.csv_reader(corpora.csv_of(cells), truth)
    yardsticks.check_csv(read(), truth, cells)
    benchmark(read)


@pytest.mark.benchmark(group="corpus")
def test_plain_python(benchmark: Any, wide_text: Corpus) -> None:
    truth = wide_text.tables["public.wide"]
    messages = wide_text.payloads.to_pylist()
    table = benchmark.pedantic(yardsticks.parse_wide_text, (messages, truth.schema), rounds=2)
    yardsticks.check_python(table, truth)


@pytest.mark.benchmark(group="ten messages")
def test_ten_messages(benchmark: Any, wide_text: Corpus) -> None:
    messages = wide_text.payloads[:10].to_pylist()
    out = benchmark(pgo.decode, messages)
    assert out.changes[0].batch.num_rows == 8


@pytest.mark.benchmark(group="ten messages")
def test_ten_more_messages(benchmark: Any, wide_text: Corpus) -> None:
    messages = wide_text.payloads[:20].to_pylist()
    decoder = pgo.Decoder()
    decoder.decode(messages[:10])
    out = benchmark(decoder.decode, messages[10:])
    assert out.changes[0].batch.num_rows == 10
