"""Removes files that no point needs, and those that a killed mirror left."""

from __future__ import annotations

import time

from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.load.ranges import LoadedRanges
from pgoutput_fast.mirror.state.layout import SPILL
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.points import Points
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables import files as table_files

__all__ = ["Cleaning"]

# Seconds between removals of files that no point needs.
_CLEAN_SECONDS = 600.0


class Cleaning:
    """Decides which files are removed, and when.

    Short runs, one after the other, clean as often as one long run.

    Args:
        store: the target.
        state: remembers when files were last removed.
        points: the points that must stay.
        late: whether a commit may be made after its process ended, because a store or a server makes it.
    """

    def __init__(self, store: Store, state: MirrorState, points: Points, *, late: bool) -> None:
        self._store, self._state, self._points, self._late = store, state, points, late
        cleaned = state.cleaned()
        past = 0.0 if cleaned is None else time.time() - cleaned
        self._next = time.monotonic() + min(max(0.0, _CLEAN_SECONDS - past), _CLEAN_SECONDS)

    def begin(self) -> None:
        """Starts the clock in the first run."""
        if self._state.cleaned() is None:
            self._state.set_cleaned(time.time())

    def clean_after_kill(self, tables: Tables) -> None:
        """Removes what a killed mirror left, now and when it is next due."""
        before = self._state.run()
        if before is not None:
            self._state.set_left_runs({before: time.time()} | self._state.left_runs())
            self._clean(tables)
            # Files of a load that was not committed go once their table exists.
            self._next = time.monotonic()
            for each in tables:
                if not each.wants_load:
                    LoadedRanges(self._store, each.directory).remove()
        self.remove_spilled()

    def remove_spilled(self) -> None:
        """Removes the parts of open transactions that were written to disk."""
        for name in self._store.names(SPILL):
            self._store.remove(name)

    def clean_if_due(self, tables: Tables) -> None:
        """Removes files of current tables that no point needs, and what earlier mirrors left, if due."""
        if time.monotonic() >= self._next:
            self._clean(tables)

    def _clean(self, tables: Tables) -> None:
        left, now = self._state.left_runs(), time.time()
        since = now - (table_files.LATE_SECONDS if self._late else 0.0)
        # If the clock was ahead, the hour begins now.
        waiting = {run: min(seen, now) for run, seen in left.items() if min(seen, now) > since}
        if len(waiting) < len(left):
            tables.remove_orphans([run for run in left if run not in waiting])
        if waiting != left:
            self._state.set_left_runs(waiting)
        if not waiting:  # the files of a run in current tables do not have its name
            oldest, snapshot = self._points.oldest(), self._points.oldest_snapshot()
            for each in tables:
                together = each.current.table.versions == "target"
                each.clean(snapshot if together else oldest.get(each.record.table))
        self._state.set_cleaned(time.time())
        self._next = time.monotonic() + _CLEAN_SECONDS
