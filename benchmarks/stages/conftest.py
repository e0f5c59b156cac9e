"""Fixtures: the corpora, at the scale in PGOUTPUT_FAST_BENCH_SCALE (a tenth by default)."""

from __future__ import annotations

import os

import pytest

from benchmarks import corpora

SCALE = float(os.environ.get("PGOUTPUT_FAST_BENCH_SCALE", "0.1"))


@pytest.fixture(scope="session", params=list(corpora.FULL_MESSAGES))
def corpus(request: pytest.FixtureRequest) -> corpora.Corpus:
    """Every corpus in turn. The fixture first checks that decoding returns the source values."""
    made = corpora.corpus(request.param, SCALE)
    corpora.check(made)
    return made


@pytest.fixture(scope="session")
def wide_text() -> corpora.Corpus:
    """The wide table's inserts in text."""
    made = corpora.corpus("wide text", SCALE)
    corpora.check(made)
    return made
