"""The settings of a mirror: all arguments of `Mirror`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pgoutput_fast.capture.retention import Retention
from pgoutput_fast.capture.retries import RETRY_SECONDS
from pgoutput_fast.catalog.patterns import Chosen
from pgoutput_fast.mirror.follow.backlog import BACKLOG_BYTES
from pgoutput_fast.schema.options import Options
from pgoutput_fast.snapshot.progress import LoadProgress
from pgoutput_fast.snapshot.snapshot import Snapshot
from pgoutput_fast.tables.options import TableOptions

__all__ = ["ALL_TABLES", "LOCK_SECONDS", "MirrorSettings", "decoding_options"]

ALL_TABLES = Chosen()
"""All published tables."""
LOCK_SECONDS = 3.0
"""How long a load waits for a lock of a table. The other tables wait meanwhile."""


def decoding_options(options: Options | None) -> Options:
    """The decoding options. By default, damaged changes go to the rejects, and their table stops.

    Raises:
        ValueError: for an option that a mirror sets itself.
    """
    options = Options(on_error="quarantine") if options is None else options
    for name in ("transactions", "metadata_prefix", "tables", "columns", "plain", "schemas", "extra_columns"):
        if getattr(options, name) != getattr(Options(), name):
            raise ValueError(f"a mirror needs the default of the option {name}: leave it out")
    return options


@dataclass(frozen=True)
class MirrorSettings:
    """What to mirror, and how.

    Attributes:
        dsn: of the database.
        slot: the slot's name.
        publications: their names, sorted.
        format: of the current tables.
        segments: the directory of the segments.
        given_segments: the same; None for the one in the target.
        adopt: whether to take over a slot that the mirror did not make.
        options: how to decode.
        threads: number of sessions that read during a load.
        table_options: how to reach the tables.
        seconds: how old a change may become before it is in its history.
        merge_seconds: how old a change may become before it is applied.
        retention: which segments are removed; None for none.
        keep_points: how many points are kept.
        in_step: whether current tables change only together.
        progress: called after each range of pages of a load; None to log it.
        retry_seconds: how long to wait for a server, a store or a catalog that cannot be reached.
        backlog_bytes: above this many bytes of unread segments the capture pauses; None for no limit.
        failover: whether standbys may have the slot.
        chosen: the tables that are mirrored, of those that are published.
        keep_seconds: for how long points are kept besides; None for no longer.
        reads_apart: whether each range of a large table with a key is read in a transaction of its own.
        trusts_widening: whether a column that became wider has the same values.
        renames_columns: whether a column that was renamed gets its new name in place.
    """

    dsn: str = field(repr=False)  # it may contain a password
    slot: str
    publications: tuple[str, ...]
    format: str
    segments: str
    given_segments: str | None
    adopt: bool
    options: Options
    threads: int
    table_options: TableOptions
    seconds: float
    merge_seconds: float
    retention: Retention | None
    keep_points: int
    in_step: bool = False
    progress: Callable[[LoadProgress], object] | None = None
    retry_seconds: float = RETRY_SECONDS
    backlog_bytes: int | None = BACKLOG_BYTES
    failover: bool = False
    keep_seconds: float | None = None
    chosen: Chosen = ALL_TABLES
    reads_apart: bool = False
    trusts_widening: bool = False
    renames_columns: bool = False

    @property
    def namespace(self) -> str:
        """The prefix of the schemas' names in the target."""
        return str(self.table_options.naming.namespace)

    @property
    def types(self) -> str:
        """The options that decide types of columns."""
        return f"numeric {self.options.numeric}, uuid {self.options.uuid}"

    def snapshot(self, slot: str | None, keep_going: Callable[[], bool]) -> Snapshot:
        """Takes a snapshot of the chosen published tables. A locked table is lost from it, and can be loaded later.

        Args:
            slot: the slot that begins at the snapshot; None for none.
            keep_going: whether to keep waiting.

        Raises:
            As `Snapshot`.
        """
        snapshot = Snapshot(
            self.dsn,
            self.publications,
            slot,
            failover=self.failover and slot is not None,
            options=self.options,
            wanted=keep_going,
            lock_seconds=LOCK_SECONDS,
        )
        snapshot.tables = {name: table for name, table in snapshot.tables.items() if self.chosen.has(name)}
        return snapshot
