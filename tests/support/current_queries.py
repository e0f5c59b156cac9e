"""A query of `current_sink` over what a server commits, beside a mirror."""

from __future__ import annotations

from typing import Any

from pgoutput_fast import spark as pgspark
from pgoutput_fast.capture import Capture
from pgoutput_fast.segments import list_segments
from support.current_streams import batch_of
from support.mirrors import Place

__all__ = ["Query"]


class Query:
    """A query that lives on: each call of `follow` captures what is committed by now, and takes it as one batch."""

    def __init__(self, spark: Any, place: Place, directory: str = "_segments", **arguments: Any) -> None:
        self._spark, self._place = spark, place
        self._directory = place.target / directory
        self._sink = pgspark.current_sink(place.target, **arguments)
        self._next = 0

    def follow(self) -> None:
        database = self._place.database
        Capture(database.dsn, self._place.slot, ["mirrored"], str(self._directory)).run(until_lsn="now")
        last = list_segments(self._directory)[-1].last_seq
        self._sink(batch_of(self._spark, self._directory, self._next, last), 0)
        self._next = last + 1
