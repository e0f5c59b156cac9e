"""Errors travel between processes."""

from __future__ import annotations

import pickle

from pgoutput_fast.postgres.errors import SilentError


def test_silent_error_pickles() -> None:
    again = pickle.loads(pickle.dumps(SilentError(59.7)))
    assert isinstance(again, SilentError)
    assert str(again) == "the server has not answered for 60 s"
