"""Mirrors a database: loads its published tables once, and follows their changes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.catalog.identifiers import parse_qualified_name, quote_qualified_name
from pgoutput_fast.mirror.errors import LoadStoppedError, MirrorBusyError, MirrorError
from pgoutput_fast.mirror.formats import check_format
from pgoutput_fast.mirror.layout import OWN, SEGMENTS
from pgoutput_fast.mirror.memory import Memory, Progress
from pgoutput_fast.mirror.points import MOST_POINTS
from pgoutput_fast.mirror.registry import Tables
from pgoutput_fast.mirror.run import MirrorRun
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.mirror.settings import MirrorSettings
from pgoutput_fast.mirror.status import TableStatus
from pgoutput_fast.mirror.tables import MirroredTable
from pgoutput_fast.postgres.session import position_of
from pgoutput_fast.protocol.lsn import Lsn
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.progress import LoadProgress
from pgoutput_fast.storage.locks import try_lock
from pgoutput_fast.storage.stores import Store, open_store

__all__ = ["Mirror"]

_log = logging.getLogger("pgoutput_fast.mirror")

_LOCK = f"{OWN}/lock"


class Mirror:
    """A copy of a database's published tables in a lake: what they are now, and every change of them.

    Use it in a `with` block: only one process at a time mirrors into a target. You may kill it at any time. The next
    one goes on where this one was.

    Args:
        dsn: of the database, with a user who may read the tables and use replication slots.
        slot: name of the replication slot. The mirror makes it.
        publications: names of the publications, without SQL quotes.
        target: a directory or a URI; it is created. `current/` has the tables as they are now, `history/` has all
            changes, `_segments/` what the server sent, and `_rejects/` what could not be decoded.
        format: of the current tables: `delta`; `parquet` for plain Parquet files, of which a file of each version says
            which ones belong to it; or `duckdb` for tables in the database `current.duckdb`. Histories are Delta
            tables.
        segments: a directory or URI for the segments, if not `_segments` in the target.
        seconds: how old a change may become before it is in its current table, as far as the work allows that.
        options: how to decode. `transactions` and `metadata_prefix` must be the default.
        adopt: take over a slot that exists, and its segments, if there are some. Nobody else may read the slot.
        retention: which segments are removed; None for none. With `Retention(consumed=True)` they stay until all
            tables have them.
        keep_points: how many points in time can be read (see `at`). Files that only older versions have are removed.
        threads: number of sessions that read a table during a load.
        progress: called after each range of pages during a load; None to log the progress.
        storage_options: what delta-rs needs to reach the store, beside what the URI says.

    Raises:
        TypeError: if `publications` is a text instead of a list.
        ValueError: for another wrong argument.
    """

    def __init__(
        self,
        dsn: str,
        slot: str,
        publications: Sequence[str],
        target: str | os.PathLike[str],
        *,
        format: str = "delta",
        segments: str | os.PathLike[str] | None = None,
        seconds: float = 10.0,
        options: Options | None = None,
        adopt: bool = False,
        retention: Retention | None = None,
        keep_points: int = MOST_POINTS,
        threads: int = 1,
        progress: Callable[[LoadProgress], object] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        expect_list("publications", publications)
        if not seconds > 0:
            raise ValueError("seconds must be positive")
        if keep_points < 1:
            raise ValueError("keep_points must be at least 1")
        self._store = open_store(target)
        check_format(format, self._store)
        self._settings = MirrorSettings(
            dsn,
            slot,
            tuple(sorted(set(publications))),
            format,
            os.fspath(self._store.at(SEGMENTS) if segments is None else segments),
            None if segments is None else os.fspath(segments),
            adopt,
            _decoding(options),
            threads,
            dict(storage_options or {}),
            seconds,
            retention,
            keep_points,
            progress,
        )
        self._server = ServerView(dsn, publications)
        self._held = ExitStack()
        self._is_open = False
        self._run: MirrorRun | None = None

    def __enter__(self) -> Mirror:
        with ExitStack() as stack:
            _make(self._store)
            if self._store.local:
                # In other stores the slot keeps a second capture away.
                stack.enter_context(_locked(self._store))
            self._held = stack.pop_all()
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._run is not None:
            self._run.end()
        self.close()

    def close(self) -> None:
        """Lets other processes mirror into the target."""
        self._is_open = False
        self._held.close()

    # ---- run -----------------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        until_lsn: Lsn | Literal["now"] | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Loads the tables if they are not loaded yet. Then follows their changes until it is told to stop.

        Args:
            until_lsn: return when everything that committed up to this LSN is in all tables: an LSN, as for
                `parse_lsn`, or `"now"` for the end of the server's log at the time of this call.
            stop: return when this event is set.

        Raises:
            MirrorError: if the mirror cannot begin or go on; the message says what to do.
            CaptureError: if the capture cannot go on.
            psycopg2.Error: if the server refuses, or is away for too long.
            OSError: if the target cannot be written.
            ValueError, TypeError: if `until_lsn` is no position.
        """
        self._expect_open()
        stop = stop if stop is not None else threading.Event()
        until = None if until_lsn is None else position_of(until_lsn, self._settings.dsn)
        time_now = self._server.now()[0] if until_lsn == "now" else None
        try:
            self._begun(stop).until(until, time_now, stop)
        except LoadStoppedError:
            self._run = None
        except BaseException:
            self._run = None
            raise

    def _begun(self, stop: threading.Event) -> MirrorRun:
        if self._run is None:
            self._run = MirrorRun(self._settings, self._store, stop)
        return self._run

    # ---- tables --------------------------------------------------------------------------------------------------

    def reload(self, table: str) -> None:
        """Loads a table again, as it is on the server now. It also mends a table that is stopped.

        Args:
            table: qualified name, quoted as in SQL.

        Raises:
            MirrorError: if it cannot be loaded now; the message says why.
            KeyError: if the publications do not publish it.
            psycopg2.Error: if the server refuses.
        """
        self._expect_open()
        parts = parse_qualified_name(table)
        name = table if parts is None else quote_qualified_name(*parts)
        published = self._server.published()
        if name not in published:
            raise KeyError(f"{table} is not published; published: {', '.join(published) or 'no table'}")
        try:
            run = self._begun(threading.Event())
            found = run.tables.named(name)
            found.want_load("reload was called")
            run.load(found, fresh=found.facts.history_error is not None)
            run.follower.mark()
        except BaseException:
            self._run = None
            raise
        if found.facts.stage != "follow":
            raise MirrorError(f"{name} cannot be loaded: {found.facts.error}")

    def status(self) -> list[TableStatus]:
        """The state of each table, sorted by name. Asks the server for its position, if it answers."""
        server: tuple[int, int] | None = None
        with suppress(Exception):
            server = self._server.now()
        if self._run is not None:
            follower = self._run.follower
            common = follower.common, follower.through_time
            return [_status(each, follower.applied, common, server) for each in self._run.tables]
        memory, settings = Memory(self._store), self._settings
        tables = Tables(self._store, settings.format, settings.storage_options, memory, self._server)
        return [_status(each, memory.progress(), (0, None), server) for each in tables]

    def _expect_open(self) -> None:
        if not self._is_open:
            raise MirrorError("the mirror is not open: use it in a with block")


def _decoding(options: Options | None) -> Options:
    """The options of decoding. By default, what is damaged goes to the rejects."""
    options = Options(on_error="quarantine") if options is None else options
    if options.transactions != "as_sent" or options.metadata_prefix != "_" or options.columns is not None:
        raise ValueError(
            "a mirror needs the default of the options transactions, metadata_prefix and columns"
        )
    return options


def _make(store: Store) -> None:
    try:
        store.make()
    except (FileExistsError, NotADirectoryError) as problem:
        raise NotADirectoryError(
            f"the target {store} is a file, or lies below one: give a directory, which need not exist"
        ) from problem


@contextmanager
def _locked(store: Store) -> Iterator[None]:
    path = Path(store.at(_LOCK))
    path.parent.mkdir(exist_ok=True)
    with open(path, "ab") as file:
        if not try_lock(file):
            raise MirrorBusyError(
                f"another process mirrors into {store}: stop it first, or use another target"
            )
        yield


def _status(
    table: MirroredTable,
    progress: Progress | None,
    common: tuple[int, int | None],
    server: tuple[int, int] | None,
) -> TableStatus:
    """The state of a table. `common` is the LSN, and the time, up to which all tables that follow have all."""
    position = table.position
    through, time_of = common
    if table.follows and progress is not None and position is not None:
        if progress.lsn >= position and progress.time is not None:
            time_of = max(progress.time, time_of or 0)
        position = max(position, progress.lsn)
    bytes_behind = seconds = None
    if server is not None and position is not None:
        now, end = server
        reached = max(position, through) if table.follows else position
        bytes_behind = max(0, end - reached)
        if not bytes_behind:
            seconds = 0.0
        elif time_of is not None and table.follows:
            seconds = max(0.0, (now - time_of) / 1e6)
    facts = table.facts
    return TableStatus(
        facts.table,
        facts.stage,
        position,
        table.history.position(),
        table.version,
        table.waiting_rows,
        table.applied,
        bytes_behind,
        seconds,
        facts.error,
        facts.history_error,
    )
