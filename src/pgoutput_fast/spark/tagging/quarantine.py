"""Finds the states between the ranges of a stream that has damaged messages.

A summary of a range holds only if the range has no damaged message. So all ranges are tagged in quarantine, from the
states that the summaries give. A range with damage reports the state after it. The later ranges whose starts differ
from those assumed are tagged again, until no start changes. Then each range was tagged from the state after the
previous one, as one decoder would do it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.parallel_tag.summary import Summary
from pgoutput_fast.spark.dataframes.tagged import Rows
from pgoutput_fast.spark.tasks.survey import Survey
from pgoutput_fast.spark.tasks.tag import CHECKED_SCHEMA, CheckRanges, Start, Starts
from pgoutput_fast.spark.types import spark_schema

__all__ = ["Checked", "SummarizedRange", "checked_starts"]


class SummarizedRange(Protocol):
    """What the first pass says of a range."""

    @property
    def count(self) -> int: ...
    @property
    def first(self) -> str: ...
    @property
    def last(self) -> str: ...
    @property
    def damaged(self) -> bool: ...
    @property
    def summary(self) -> bytes: ...


@dataclass(frozen=True)
class Checked:
    """The ranges of a stream in quarantine.

    Attributes:
        starts: the starts of all ranges, for tasks.
        ranges: the same, in stream order.
        state: the state after the last one.
        rejected: whether there are rejected messages, or transactions whose outcome is unknown.
        survey: what a decoding needs to know of all ranges.
    """

    starts: Starts
    ranges: tuple[Start, ...]
    state: StreamState
    rejected: bool
    survey: Survey


@dataclass(frozen=True)
class _End:
    """The end of a range, if it begins with a certain start.

    Attributes:
        key: identifies the start.
        rejected: whether it has rejected messages.
        values: values of the state after it; None if the summary gives it.
        new: its new relation versions.
        survey: what a decoding needs to know of it.
    """

    key: tuple[Any, ...]
    rejected: bool
    values: dict[str, Any] | None
    new: tuple[Relation, ...]
    survey: Survey


def checked_starts(
    rows: Rows,
    ranges: Sequence[SummarizedRange],
    names: tuple[str, ...],
    state: StreamState,
    *,
    commits: bool,
) -> Checked:
    """Runs jobs until the starts of all ranges are those that one decoder would have.

    Args:
        rows: the rows of all ranges; of changes the headers suffice.
        ranges: the ranges, in stream order.
        names: names of the order columns, for errors.
        state: the state before the first range.
        commits: whether the survey has the outcomes of transactions.
    """
    known = _Ranges(ranges, state)
    while known.pass_through():
        unchecked = Starts.of(known.unchecked.values(), known.catalog.to_json(), rows.shared)
        job = CheckRanges(unchecked, names, commits)
        for row in rows.mapped(job, spark_schema(CHECKED_SCHEMA)).toArrow().to_pylist():
            known.add(row)
    rejected = any(end.rejected for end in known.ends.values())
    survey = Survey.joined(end.survey for end in known.ends.values())
    found = tuple(known.starts.values())
    starts = Starts.of(found, known.catalog.to_json(), rows.shared)
    return Checked(starts, found, known.state, rejected, survey)


class _Ranges:
    """The ranges, and what is known of their starts and ends.

    Attributes:
        starts: the starts of all ranges.
        unchecked: the same starts. Those that were checked already have no state, so that tasks skip them.
        ends: the last known end of each range, by its first row.
        state: the state after the last range.
        catalog: the relation versions that the states refer to, in the order of the stream.
    """

    def __init__(self, ranges: Sequence[SummarizedRange], state: StreamState) -> None:
        self.starts: dict[str, Start] = {}
        self.unchecked: dict[str, Start] = {}
        self.ends: dict[str, _End] = {}
        self.state = state
        self._ranges = ranges
        self._before = state
        self._keys: dict[str, tuple[Any, ...]] = {}
        self._versions: dict[int, Relation] = {}
        self._trail = 0  # identifies the relation versions, and their order

    @property
    def catalog(self) -> Catalog:
        """As above."""
        return Catalog(list(self._versions.values()), self._before.catalog.types)

    def pass_through(self) -> bool:
        """Determines the start of each range from the end of the previous one.

        Returns whether there is a start with which its range has not been checked.
        """
        self._versions, self._trail = {}, 0
        self._learn(self._before.catalog.relations)
        state, has_new = self._before, False
        for each in self._ranges:
            applied, sound = _applied(each, state)
            reports = not sound or _has_doubts(state)
            start = replace(
                Start.of(state, each.count, each.first, each.last),
                versions=len(self._versions),
                reports=reports,
            )
            key = start.state, self._trail
            end = self.ends.get(each.first)
            is_checked = end is not None and end.key == key
            self.starts[each.first] = start
            self.unchecked[each.first] = replace(start, state=None) if is_checked else start
            self._keys[each.first] = key
            has_new = has_new or not is_checked
            state = self._after(each, applied, key, end)
        self.state = state
        return has_new

    def add(self, row: dict[str, Any]) -> None:
        """Adds the end of a range, with CHECKED_SCHEMA."""
        new = () if row["catalog"] is None else tuple(Catalog.from_json(row["catalog"]).relations)
        values = None if row["state"] is None else parsed_json(zlib.decompress(row["state"]))
        key = self._keys[row["first"]]
        self.ends[row["first"]] = _End(key, row["rejected"], values, new, Survey.of_row(row))

    def _after(
        self, each: SummarizedRange, applied: StreamState, key: tuple[Any, ...], end: _End | None
    ) -> StreamState:
        """The state after a range. It is an estimate if the range was not checked with this start.

        Args:
            each: the range.
            applied: the state by its summary.
            key: identifies its start.
            end: its last known end.
        """
        if end is not None and (end.key == key or (each.damaged and self._suits(end))):
            self._learn(end.new)
            if end.values is not None:
                return StreamState(end.values, self.catalog)
        if end is None or end.key != key:
            self._learn(applied.catalog.relations)
        return StreamState(applied.values, self.catalog)

    def _suits(self, end: _End) -> bool:
        """Whether the end of a range that had another start is an estimate of its end with this one."""
        if end.values is None:
            return False
        known = self._versions.keys() | {each.version for each in end.new}
        return _versions_in(end.values) <= known

    def _learn(self, relations: Sequence[Relation]) -> None:
        for each in relations:
            if each.version not in self._versions:
                self._versions[each.version] = each
                self._trail = hash((self._trail, each.version))


def _applied(each: SummarizedRange, state: StreamState) -> tuple[StreamState, bool]:
    """The state after a range by its summary, and whether it holds if no message of the range is rejected."""
    summary = Summary.from_bytes(each.summary)
    try:
        return summary.apply(state), True
    except ValueError:  # a DecodeError, or a state that lacks a boundary or a Type
        return summary.apply(state, lenient=True), False


def _has_doubts(state: StreamState) -> bool:
    """Whether a prepared transaction may have ended: if its name is used again, a summary does not say so."""
    return any(each.get("perhaps_ended") for each in (state.values or {}).get("prepared", ()))


def _versions_in(values: dict[str, Any]) -> set[int]:
    """The relation versions to which a state refers."""
    scopes = [*values["streamed"], *values["prepared"], values["current"] or {}]
    found = [version for version, _ in values["relations"].values()]
    found += [version for scope in scopes for _, _, version, _ in scope.get("relations", ())]
    return {int(version) for version in found if version is not None}
