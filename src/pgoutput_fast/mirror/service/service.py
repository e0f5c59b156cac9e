"""Mirrors a database: loads its published tables once, and follows their changes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.base.display import escaped, html_table, some_of
from pgoutput_fast.capture.metrics import reporting
from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.capture.retries import RETRY_SECONDS
from pgoutput_fast.catalog.identifiers import parse_qualified_name, quote_qualified_name
from pgoutput_fast.catalog.patterns import Chosen
from pgoutput_fast.mirror.errors import LoadStoppedError
from pgoutput_fast.mirror.follow.backlog import BACKLOG_BYTES
from pgoutput_fast.mirror.repair.repair_table import TableRepair
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.service.arguments import expect_arguments, expect_bool
from pgoutput_fast.mirror.service.metrics import MirrorMeter, MirrorMetrics
from pgoutput_fast.mirror.service.outages import Outages
from pgoutput_fast.mirror.service.run import MirrorRun
from pgoutput_fast.mirror.service.start_undo import StartUndo
from pgoutput_fast.mirror.service.status import TableStatus, table_status, without_slot
from pgoutput_fast.mirror.service.stored import stored_status, unfinished
from pgoutput_fast.mirror.settings import MirrorSettings, decoding_options
from pgoutput_fast.mirror.slot import slot_problem
from pgoutput_fast.mirror.state.identity import expect_same
from pgoutput_fast.mirror.state.layout import SEGMENTS, WRITER
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.points import MOST_POINTS, Points
from pgoutput_fast.postgres.errors import NO_ANSWER, StoppedError
from pgoutput_fast.postgres.interruptible import stopping
from pgoutput_fast.postgres.session import describe_database, position_of
from pgoutput_fast.protocol.lsn import Lsn
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.progress import LoadProgress
from pgoutput_fast.storage.lease import WriterLease
from pgoutput_fast.storage.paths import absolute
from pgoutput_fast.storage.stores import make_target, open_store
from pgoutput_fast.tables.advice import advised
from pgoutput_fast.tables.errors import MirrorError
from pgoutput_fast.tables.formats import FORMATS, HISTORIES, check_name
from pgoutput_fast.tables.naming import Naming
from pgoutput_fast.tables.options import Merges, TableOptions

__all__ = ["Mirror"]

_log = logging.getLogger("pgoutput_fast.mirror")


class Mirror:
    """A copy of a database's published tables in a lake: their current rows, and every change.

    Use it in a `with` block: only one process at a time mirrors into a target. You may kill it at any time. The next
    one goes on where this one was.

    Args:
        dsn: of the database, with a user who may read the tables and use replication slots.
        slot: name of the replication slot. The mirror makes it.
        publications: names of the publications, without SQL quotes.
        target: a directory or a URI; it is created. `current/` has the current tables, `history/` all changes,
            `_segments/` the stream of the server, and `_rejects/` values and changes that could not be decoded or have
            no Arrow form.
        tables: only these of the published tables, by qualified name, quoted as in SQL, or by a pattern such as
            `public.*`. None for all. A table that the mirror has, and that is not chosen any more, stays as it is. It
            is loaded if it is chosen again.
        exclude: not these tables, by name or pattern.
        format: of the current tables: `delta`; `iceberg` for Iceberg tables with a catalog in `current/_catalog.db`;
            `duckdb` for tables in the database `current.duckdb`; or `ducklake` for tables in a lake with the catalog
            `current.ducklake`. Histories are Delta tables.
        segments: a directory or URI for the segments, if not `_segments` in the target.
        seconds: how old a change may become before it is in its history and its current table. Under load, it takes
            longer.
        merge_seconds: the same for current tables alone. Histories may be ahead of them (see `fresh`). None for
            `seconds`. Changes wait in memory until they are in the current table.
        merge: how rows of current tables are updated and deleted: `on_write` writes the files with them anew; `on_read`
            marks the rows as deleted, in files that stay, and their readers must know deletion vectors of Delta, or
            position deletes of Iceberg. Each run may use another one. A dict such as `{"public.orders": "on_read"}` is
            for the named tables; the others have `on_write`.
        options: how to decode: numeric, uuid, strings, on_error, unrepresentable, and those of memory and threads. The
            others must be the default. A uuid that is not a text is stored as a binary value.
        adopt: take over an existing slot, and its segments, if there are any. The slot must have no other reader.
        retention: which segments are removed; None for none. With `Retention(consumed=True)` they stay until all tables
            have them.
        keep_points: how many points in time can be read (see `at`). Files that only older versions have are removed.
        keep_seconds: also keep what is needed to read the tables as of any time in the last so many seconds (`fresh`),
            and about a thousand of the points then. None to keep only `keep_points`.
        in_step: change current tables only if all of them can reach the same position. Then every change of them
            records a point, and a stopped table stops the mirror.
        threads: number of sessions that read during a load: a large table, or as many small ones at the same time. As
            many tables are written at the same time.
        snapshot: `"shared"`: a load reads its tables in one transaction, which may stay open for as long as the load
            takes. `"ranges"`: it reads each range of the pages of a large table with a key in a transaction of its own,
            so that VACUUM can remove old rows meanwhile.
        progress: called after each range of pages during a load; None to log the progress.
        storage_options: options of delta-rs for the store, besides the URI.
        retry_seconds: how long to wait for a server or store that cannot be reached, once the mirror has begun.
        backlog_bytes: above about this many bytes of segments that are not in histories yet, the capture pauses until
            half of them are left. The server keeps the changes meanwhile. None for no limit.
        failover: whether standbys may have the slot, so that the mirror goes on after a failover without a repair
            (17 and later). An existing slot gets the property, too. False leaves it as it is.
        iceberg_catalog: for Iceberg: the properties of a pyiceberg catalog, such as `{"type": "rest", "uri": ...}`;
            `name` is the catalog's name. None for a catalog in the target.
        namespace: a prefix of the schemas' names in the target, such as `north_`, so that an Iceberg catalog can have
            the tables of several mirrors. Each mirror has a target of its own. `at`, `status` and `fresh` take and give
            the names of the server.
        trust_widening: you state that ALTER TABLE, if it makes a column wider (`int` to `bigint`, `real` to `double
            precision`, a numeric with a larger scale), does nothing else to the rows: there is no `USING` with other
            values. Then the mirror makes its own column wider. False: it loads the table again.
        rename_columns: whether a column that is renamed on the server gets its new name in the current table, and no
            file is written again. Not for `delta`. False: it becomes a new column with the same values, and the old one
            stays beside it, null in new rows, for readers that use its name. Each run may choose.
        metrics_file: a file that gets the metrics every ten seconds while the mirror runs, for Prometheus' node
            exporter.
        metrics_address: `host:port` where Prometheus can scrape the metrics while the mirror runs.

    Raises:
        TypeError: if `publications` is a text instead of a list, or if another argument has a wrong type.
        ValueError: for another wrong argument.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        publications: Sequence[str],
        target: str | os.PathLike[str],
        *,
        tables: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        format: str = "delta",
        segments: str | os.PathLike[str] | None = None,
        seconds: float = 10.0,
        merge_seconds: float | None = None,
        merge: Merges = "on_write",
        options: Options | None = None,
        adopt: bool = False,
        retention: Retention | None = None,
        keep_points: int = MOST_POINTS,
        keep_seconds: float | None = None,
        in_step: bool = False,
        threads: int = 1,
        snapshot: Literal["shared", "ranges"] = "shared",
        progress: Callable[[LoadProgress], object] | None = None,
        storage_options: Mapping[str, str] | None = None,
        retry_seconds: float = RETRY_SECONDS,
        backlog_bytes: int | None = BACKLOG_BYTES,
        failover: bool = False,
        iceberg_catalog: Mapping[str, str] | None = None,
        namespace: str = "",
        trust_widening: bool = False,
        rename_columns: bool = False,
        metrics_file: str | os.PathLike[str] | None = None,
        metrics_address: str | None = None,
    ) -> None:
        arguments = dict(locals())
        expect_list("publications", publications)
        expect_list("tables", tables)
        expect_list("exclude", exclude)
        others = arguments.keys() - {"self", "publications", "format"}
        expect_arguments({name: arguments[name] for name in others})
        if tables is not None and not tables:
            raise ValueError("tables is empty: pass None for all published tables")
        chosen = Chosen(None if tables is None else tuple(tables), tuple(exclude))
        merge_seconds = seconds if merge_seconds is None else merge_seconds
        if not merge_seconds >= seconds:
            raise ValueError("merge_seconds must not be less than seconds")
        # Independent of later changes of the working directory; a Spark sink finds the directory, too.
        self._store = open_store(absolute(target))
        table_options = TableOptions(
            storage_options, iceberg_catalog, naming=Naming(namespace), merge=merge, history_seconds=seconds
        )
        check_name(format, "current")
        FORMATS[format].check(self._store, table_options, format)
        FORMATS[format].check_renames(rename_columns, format)
        FORMATS[HISTORIES].check_path(self._store, HISTORIES)
        given = None if segments is None else absolute(segments)
        self._settings = MirrorSettings(
            dsn, slot, tuple(sorted(set(publications))), format,
            os.fspath(self._store.at(SEGMENTS)) if given is None else given, given,
            adopt, decoding_options(options), threads, table_options, seconds, merge_seconds, retention, keep_points,
            in_step, progress, retry_seconds, backlog_bytes, failover, keep_seconds, chosen, snapshot == "ranges",
            trust_widening, rename_columns,
        )  # fmt: skip
        self._outages = Outages(self._store, retry_seconds)
        self._check: Callable[[], object] | None = None
        self._server = ServerView(dsn, publications, chosen=chosen)
        self._stack = ExitStack()
        self._is_open = self._is_running = False
        self._run: MirrorRun | None = None
        # The last run. During an outage there is none, and the metrics show the tables before it.
        self._last_run: MirrorRun | None = None
        self._meter = MirrorMeter(self._read_metrics)
        self._metrics_file = None if metrics_file is None else Path(metrics_file)
        self._metrics_address = metrics_address

    def __repr__(self) -> str:
        return f"<Mirror: {', '.join(f'{name} {value}' for name, value in self._facts())}>"

    def _repr_html_(self) -> str:
        return html_table("Mirror", ["", ""], self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        """What identifies the mirror, without a secret. Does not ask the server."""
        settings = self._settings
        return [
            ("slot", escaped(settings.slot)),
            ("of", describe_database(settings.dsn)),
            ("publications", escaped(some_of(settings.publications))),
            ("to", escaped(str(self._store))),
            ("format", settings.format),
        ]

    def __enter__(self) -> Mirror:
        for each in (HISTORIES, self._settings.format):
            FORMATS[each].check_package(f"a mirror with format={self._settings.format!r}")
        with advised(self._store), ExitStack() as stack:
            undo = StartUndo(self._store)
            make_target(self._store)
            self._check = stack.enter_context(WriterLease(self._store, WRITER)).check
            # While no other process can have the target.
            stack.callback(self._undo, undo)
            self._stack = stack.pop_all()
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._run is not None:
            self._run.end()
        self.close()

    def close(self) -> None:
        """Lets other processes mirror into the target. If the mirror could not begin, the target is as before."""
        self._is_open = False
        self._end_run()
        self._stack.close()

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.close()
        self._run = None

    def _undo(self, undo: StartUndo) -> None:
        """Removes the files and directories of this process, if the mirror has not begun."""
        with suppress(Exception):  # unknown: the store cannot be reached
            if MirrorState(self._store).beginning() is None:
                undo.run()

    # ---- run -----------------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        until_lsn: Lsn | Literal["now"] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Loads the tables if they are not loaded yet. Then follows their changes until it is told to stop.

        Args:
            until_lsn: return when all commits up to this LSN are in all tables: an LSN, as for `parse_lsn`, or `"now"`
                for the end of the server's WAL at the time of this call.
            stop: return when this event is set.

        Raises:
            SlotLostError: if the slot is lost; `repair` makes another one.
            MirrorError: if the mirror cannot begin or go on; the message says what to do.
            CaptureError: if the capture cannot go on.
            psycopg2.Error: if the server refuses, or cannot be reached for too long.
            OSError: if the target cannot be written, or a catalog cannot be reached; of a store or a server, only after
                `retry_seconds`.
            ValueError, TypeError: if `until_lsn` is not a position.
        """
        self._expect_open()
        stop = stop if stop is not None else threading.Event()
        with suppress(StoppedError), stopping(stop):
            # The time first: commits after the position must not count as older.
            now = self._server.now()[0]
            until = None if until_lsn is None else position_of(until_lsn, self._settings.dsn)
            time_now = now if until_lsn == "now" else None
            self._work(lambda: self._begun(stop).until(until, time_now, stop), stop)

    def _work(self, task: Callable[[], object], stop: threading.Event) -> None:
        """Does a task of a run, repeats it after outages, and exports its metrics."""

        def attempt() -> None:
            try:
                task()
            except BaseException:
                self._end_run()
                raise

        with reporting(self._meter, log_seconds=None, file=self._metrics_file, address=self._metrics_address):
            self._is_running = True
            try:
                with suppress(LoadStoppedError, StoppedError), stopping(stop):
                    self._outages.outlast(attempt, stop)
                if (why := self.unfinished) is not None:
                    _log.warning("%s", why)
            finally:
                self._is_running = False

    @property
    def unfinished(self) -> str | None:
        """The work that was stopped before its end, and its slot on the server; None without such work.

        Raises:
            OSError: if the target cannot be read.
        """
        return unfinished(MirrorState(self._store))

    def repair(
        self, *, stop: threading.Event | None = None, another_source: bool = False
    ) -> list[TableRepair]:
        """Repairs the tables after the slot was lost: it was dropped, or invalidated by the server.

        The mirror makes another slot, and compares all tables with the server at the start of this slot. It writes only
        the rows that differ, into history and current table. A table that has no key, or whose columns have changed, is
        loaded again. If a repair is interrupted, call `repair` or `run`: the repair begins again with another slot.

        Args:
            stop: give up when this event is set.
            another_source: whether the dsn may lead to another server, or to a database with another name, that has
                replaced the source of the tables. The tables get its rows. A promoted standby is the same server.

        Returns:
            The repairs of the tables. Empty if the slot is usable, or if `stop` was set.

        Raises:
            MirrorError: if the tables cannot be repaired; the message says what to do.
            SnapshotError, psycopg2.Error: if the server refuses, or cannot be reached for longer than `retry_seconds`;
                or if a table cannot be read.
            OSError: as `run`.
        """
        self._expect_open()
        stop = stop if stop is not None else threading.Event()
        found: list[TableRepair] = []
        expect_bool("another_source", another_source)
        self._work(lambda: found.extend(self._begun(stop, another_source).repair(stop)), stop)
        return found

    def _begun(self, stop: threading.Event, another: bool = False) -> MirrorRun:
        if self._run is None:
            self._last_run = self._run = MirrorRun(
                self._settings, self._store, stop, self._outages, self._check, another_source=another
            )
        return self._run

    # ---- tables --------------------------------------------------------------------------------------------------

    def reload(self, table: str, *, stop: threading.Event | None = None) -> None:
        """Loads a table again from the server. A stopped table goes on afterwards.

        Args:
            table: qualified name, quoted as in SQL.
            stop: give up when this event is set. The next run then loads the table.

        Raises:
            MirrorError: if it cannot be loaded now; the message says why.
            KeyError: if the publications do not publish it.
            psycopg2.Error: if the server refuses.
        """
        self._expect_open()
        stop = stop if stop is not None else threading.Event()
        with suppress(LoadStoppedError, StoppedError), stopping(stop):
            self._reload(table, stop)

    def _reload(self, table: str, stop: threading.Event) -> None:
        parts = parse_qualified_name(table)
        name = table if parts is None else quote_qualified_name(*parts)
        published = sorted(self._server.fingerprints())
        renamed = {each.table: each.renamed for each in MirrorState(self._store).tables().values()}
        if (renamed.get(name) or name) not in published:
            alike = [each for each in published if each.endswith(f".{table}")]
            hint = (
                f": write {' or '.join(alike)}"
                if alike
                else f"; published: {', '.join(published) or 'no table'}"
            )
            raise KeyError(f"{table} is not published{hint}")
        try:
            run = self._begun(stop)
            found = run.tables.named(name)
            found.want_load("reload was called")
            run.load(found, fresh=found.record.history_error is not None)
            run.follower.mark()
        except BaseException:
            self._end_run()
            raise
        if found.record.stage != "follow":
            raise MirrorError(f"{name} cannot be loaded: {found.record.error}")

    def forget(self, table: str) -> None:
        """Forgets a table that is no longer published: status and metrics no longer show it.

        Its files in `current/` and `history/` stay, and are yours from then on: keep or remove them. Remove them or
        move them away before you publish a table of this name again, because the mirror does not write into them.

        Args:
            table: qualified name, quoted as in SQL.

        Raises:
            KeyError: if the mirror does not have the table.
            MirrorError: if it is published, or if the mirror has not noticed yet that it is not.
        """
        self._expect_open()
        parts = parse_qualified_name(table)
        name = table if parts is None else quote_qualified_name(*parts)
        state = MirrorState(self._store, self._check)
        known = {record.table: (directory, record) for directory, record in state.tables().items()}
        if name not in known:
            raise KeyError(f"{table} is not mirrored; mirrored: {', '.join(sorted(known)) or 'no table'}")
        directory, record = known[name]
        if not record.is_unpublished:
            raise MirrorError(
                f"{name} is still mirrored: drop it, or drop it from the publication, and run the mirror with --until "
                "now. Then forget it"
            )
        state.forget_table(directory)
        self._end_run()

    def status(self) -> list[TableStatus]:
        """The state of all tables, sorted by name. Asks the server for its position.

        Raises:
            MirrorError: if the target has another mirror, such as one with another format.
        """
        server = self._server_now()
        state, settings = MirrorState(self._store), self._settings
        known = state.beginning()
        if self._run is not None:
            follower = self._run.follower
            common = follower.common, follower.through_time
            found = [table_status(each, follower.applied, common, server) for each in self._run.tables]
        else:
            if known is not None:
                expect_same(settings, known, self._store)
            found = stored_status(
                self._store, settings.format, settings.table_options, state, self._server, server
            )
        if server is None:
            return found
        return without_slot(found, slot_problem(settings.dsn, known, state.progress(), settings.segments))

    @property
    def metrics(self) -> MirrorMetrics:
        """The current metrics, from any thread. Asks the server for its part."""
        return self._meter.read()

    def _read_metrics(self) -> MirrorMetrics:
        run, server, slot = self._last_run, self._server_now(), self._settings.slot
        kept = self._server.kept_bytes(slot)
        if run is None:
            return MirrorMetrics(slot, self._is_running, (), None, None, kept)
        follower = run.follower
        common = follower.common, follower.through_time
        tables = tuple(table_status(each, follower.applied, common, server) for each in run.tables)
        # The histories have all commits before the end of the WAL.
        lag = None if server is None else max(0, server[1] - 1 - follower.history_lsn)
        count = len(Points(self._store).read())
        backlog, is_paused = self._backlog(run)
        return MirrorMetrics(slot, self._is_running, tables, count, lag, kept, backlog, is_paused)

    def _backlog(self, run: MirrorRun) -> tuple[int | None, bool]:
        """(the bytes of segments that are not read yet, None if unknown; whether the capture is paused)."""
        with suppress(OSError, ValueError):
            return run.unread_bytes(), run.is_paused
        return None, run.is_paused

    def _server_now(self) -> tuple[int, int] | None:
        """(the server's time, the end of its WAL); None without an answer."""
        with suppress(*NO_ANSWER):
            return self._server.now()
        return None

    def _expect_open(self) -> None:
        if not self._is_open:
            raise MirrorError("the mirror is not open: use it in a with block")
