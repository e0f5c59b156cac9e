"""Stage 4, convert: one column of each type, in text and in binary."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from benchmarks.corpora import SEED
from benchmarks.corpora.columns import TYPES
from benchmarks.corpora.printed_columns import PRINTED_TYPES
from benchmarks.report import check_convert, column_type
from pgoutput_fast._core.bench import time_convert

pytestmark = pytest.mark.benchmark(timer=time.process_time)

CELLS = 4096


@pytest.mark.parametrize("form", ["text", "binary"])
@pytest.mark.parametrize("name", TYPES | PRINTED_TYPES)
def test_convert(benchmark: Any, name: str, form: str) -> None:
    kind = (TYPES | PRINTED_TYPES)[name]
    check_convert(name, kind, CELLS)
    cells = kind.make(np.random.default_rng(SEED), CELLS)
    wire = cells.binary if form == "binary" else cells.text
    # Twenty passes make the cost of building the cells small.
    seconds = benchmark.pedantic(time_convert, (column_type(kind), wire, form == "binary", 20), rounds=3)
    benchmark.extra_info["ns per cell"] = sorted(seconds)[10] / CELLS * 1e9
