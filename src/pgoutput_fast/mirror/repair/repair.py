"""Repairs a lost slot: a new one replaces it, and the tables get the changes in between.

1. The segments of the lost slot go into histories and current tables.
2. A new slot is created, with the snapshot at which it begins.
3. All tables are compared with the snapshot (`compare/`). The differences of a table go into its history in one commit,
   and then into its current table in one commit. A table that cannot be compared is loaded again.
4. The mirror goes on with the stream of the new slot, whose segments have their own directory.

An interrupted repair begins again with another slot: tables that are already repaired then differ little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from pgoutput_fast.capture.retention import Consumers, retain
from pgoutput_fast.mirror.errors import LoadStoppedError, MirrorSegmentsGoneError
from pgoutput_fast.mirror.follow.follow import Follower
from pgoutput_fast.mirror.follow.registry import Tables
from pgoutput_fast.mirror.follow.tables import MirroredTable
from pgoutput_fast.mirror.load.begin import check_server, drop_own, save_start
from pgoutput_fast.mirror.load.load import load_table, logged
from pgoutput_fast.mirror.repair.repair_table import TableRepair, catch_up, repair_table, why_loaded
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.slot import expect_slot, lost, server_behind_error
from pgoutput_fast.mirror.state.identity import read_source
from pgoutput_fast.mirror.state.layout import CONSUMER, stream_directory
from pgoutput_fast.mirror.state.mirror_state import Beginning, MirrorState, Progress
from pgoutput_fast.mirror.state.table_record import Gap
from pgoutput_fast.postgres.slots import drop_slot, find_slot, keep_decoding
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.segments.names import newest_named
from pgoutput_fast.snapshot.export import SnapshotError
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.tables.errors import MirrorError

__all__ = ["Repair", "in_stream", "last_change"]

_log = logging.getLogger("pgoutput_fast.mirror")


def in_stream(settings: MirrorSettings, progress: Progress | None) -> MirrorSettings:
    """The settings with the directory of the newest slot's segments."""
    if progress is None or not progress.stream:
        return settings
    return replace(settings, segments=stream_directory(settings.segments, progress.stream))


def _next_stream(settings: MirrorSettings, stream: int) -> int:
    """The next stream number whose directory has no segments. If the progress was removed, `stream` is 0."""
    stream += 1
    while newest_named(open_store(stream_directory(settings.segments, stream))) is not None:
        stream += 1
    return stream


def last_change(follower: Follower, tables: Tables) -> int:
    """The LSN up to which the target has changes."""
    return max([follower.read.lsn, *(each.position or 0 for each in tables)])


class Repair:
    """A repair of all tables.

    Args:
        given: settings of the mirror, with the directory of all segments.
        store: the target.
        memory, tables, server: of the mirror.
        follower: applies the segments of the lost slot.
        run: names this process.
        keep_going: called from time to time: whether to go on.
        further: called with the number of repaired tables.
    """

    def __init__(
        self,
        given: MirrorSettings,
        store: Store,
        state: MirrorState,
        tables: Tables,
        server: ServerView,
        follower: Follower,
        run: str,
        keep_going: Callable[[], bool],
        further: Callable[[int], object],
    ) -> None:
        self._further = further
        self._given, self._settings = given, in_stream(given, follower.applied)
        self._store, self._state, self._tables = store, state, tables
        self._server, self._follower, self._run, self._keep_going = server, follower, run, keep_going

    def all_tables(self) -> tuple[Progress, list[TableRepair]]:
        """Repairs all tables, if the slot is lost.

        Returns:
            The progress of all tables, and the repairs; no repairs if the slot is usable.

        Raises:
            LoadStoppedError: if `keep_going` became false. The next call begins again, as after every other error.
            SlotLostError: if somebody else has made another slot of this name, or advanced it. Drop it first.
            MirrorError: if the tables are ahead of the server, or another server has a slot of this name.
            SnapshotError, ValueError, psycopg2.Error: if the tables cannot be read.
        """
        settings = self._settings
        with keep_decoding(settings.dsn, settings.slot):
            begun = self._begin()
        if begun is None:
            _log.info("slot %s is usable: there is nothing to repair", settings.slot)
            return self._follower.applied, []
        known, taken = begun
        with taken as snapshot:
            position, (time, _) = snapshot.consistent_lsn - 1, self._server.now()
            self._state.set_beginning(known.at("repair", position))
            done: list[TableRepair] = []
            for name in snapshot.tables:
                done.append(self._repair(self._tables.named(name), snapshot, time))
                self._further(len(done))
            for each in self._tables:
                if each.record.on_server not in snapshot.tables:
                    each.leave()
        stream = _next_stream(self._given, self._follower.applied.stream)
        progress = Progress(-1, 0, position, time, stream)
        save_start(open_store(stream_directory(self._given.segments, stream)), snapshot.consistent_lsn)
        self._state.set_progress(progress)
        self._state.set_history_lsn(position)
        self._state.set_beginning(known.at("done", position))
        if settings.retention is not None and settings.retention.consumed:
            retain(settings.segments, consumed=True)
        _log.info("the repair is complete up to %s", format_lsn(position))
        return progress, done

    def _begin(self) -> tuple[Beginning, Snapshot] | None:
        """(the beginning with another slot, the snapshot at which that begins); None if the slot is usable."""
        known, settings = self._state.beginning(), self._settings
        assert known is not None
        source = read_source(settings.dsn)
        if not self._is_lost(known, source):
            return None
        check_server(settings, None)
        self._take_segments()
        known = replace(self._expect_ahead(known), source=source, lost=None)
        self._state.set_beginning(known)
        return known, self._snapshot()

    def _is_lost(self, known: Beginning, source: tuple[str, str]) -> bool:
        """Whether a new slot is needed. Drops the rest of the last one.

        Args:
            known: how the mirror began.
            source: the current source, which an interrupted repair may have begun to use.
        """
        settings = self._settings
        slot = find_slot(settings.dsn, settings.slot)
        if known.source != source:
            if slot is not None:
                raise MirrorError(
                    f"slot {settings.slot} exists on this server, and this mirror did not make it there. If nobody "
                    "else reads the slot, drop it with drop_slot. Then repair the mirror again"
                )
        elif known.stage != "done":
            drop_own(settings.dsn, known)
        elif lost(settings.slot, slot) is None:
            ahead = last_change(self._follower, self._tables)
            expect_slot(settings.dsn, settings.slot, settings.segments, ahead)
            if known.lost is None:
                return False
            drop_slot(settings.dsn, settings.slot)  # this mirror has read it, and it can never go on
        elif slot is not None:
            drop_slot(settings.dsn, settings.slot)
        return True

    def _snapshot(self) -> Snapshot:
        settings = self._settings
        self._server.check()
        try:
            return settings.snapshot(settings.slot, self._keep_going)
        except SnapshotError as problem:
            if not self._keep_going():
                raise LoadStoppedError from problem
            raise

    def _take_segments(self) -> None:
        """Applies all that the lost slot sent to histories and current tables."""
        follower = self._follower
        try:
            while follower.take(self._keep_going, alone=True):  # a stopped table is loaded soon
                pass
        except MirrorSegmentsGoneError as problem:
            # Without them, history and current table still agree, and are compared with the server.
            _log.warning("the repair continues without some segments: %s", problem)
        if not self._keep_going():
            raise LoadStoppedError
        follower.apply(alone=True)
        if follower.consumed is not None:
            Consumers(self._settings.segments).set(CONSUMER, follower.consumed)

    def _expect_ahead(self, known: Beginning) -> Beginning:
        """The beginning of the repair.

        Raises:
            MirrorError: if tables have changes that the server lacks.
        """
        _, lsn = self._server.now()
        if (ahead := last_change(self._follower, self._tables)) > lsn:
            raise server_behind_error(ahead, lsn)
        return replace(known, made=True).at("new slot", lsn)

    def _repair(self, table: MirroredTable, snapshot: Snapshot, time: int) -> TableRepair:
        name, settings = table.record.on_server, self._settings
        progress = settings.progress or logged(name)
        try:
            why = why_loaded(table, snapshot, self._server)
            if why is None:
                gap = Gap(self._follower.history_lsn, snapshot.consistent_lsn - 1, time)
                table.remember(gaps=(*table.record.gaps, gap))
                catch_up(table, snapshot)
                done = repair_table(
                    table, snapshot, self._store, self._run, self._keep_going, settings.threads, progress
                )
                if done.loaded is None:
                    table.remember(fingerprint=self._server.fingerprint_in(snapshot, name), partitions={})
                    _log.info("%s", done)
                    return done
                why = done.loaded
            _log.info("loading %s: %s", name, why)
            fresh = table.record.history_error is not None
            load_table(
                table,
                snapshot,
                self._server,
                self._store,
                self._run,
                settings,
                fresh=fresh,
                keep_going=self._keep_going,
            )
        except SnapshotError as problem:
            if name not in str(problem):
                raise
            table.want_load(why := str(problem))  # altered or dropped meanwhile: it gets a load of its own
        except ValueError as problem:
            table.stop(why := str(problem))
        return TableRepair(name, why)
