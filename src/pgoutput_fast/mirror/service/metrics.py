"""Metrics of a mirror: its own counts and the lag of its tables; as an object, and for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pgoutput_fast.base.arguments import expect_list
from pgoutput_fast.mirror.service.status import TableStatus

__all__ = ["MirrorMeter", "MirrorMetrics"]

_NAME = "pgoutput_fast_mirror"
# Attribute of a table's status -> (name of the metric, type, help).
_OF_TABLES = {
    "lag_bytes": (
        "lag_bytes",
        "gauge",
        "Bytes of WAL from the current table's position to the end of the server's WAL.",
    ),
    "lag_seconds": ("lag_seconds", "gauge", "Everything that committed longer ago is in the current table."),
    "waiting_rows": ("waiting_rows", "gauge", "Changes that the history has and the current table has not."),
    "applied_rows": (
        "applied_rows_total",
        "counter",
        "Changes that the mirror applied to the current table.",
    ),
    "merges": ("merges_total", "counter", "Merges into the current table."),
    "merge_seconds": (
        "merge_seconds_total",
        "counter",
        "Seconds that merges into the current table took.",
    ),
    "rejects": (
        "rejects_total",
        "counter",
        "Values and changes that have no Arrow form, or could not be decoded: they are in the table's rejects.",
    ),
    "load.rows": ("load_rows", "gauge", "Rows that the load of the table has read."),
    "load.nbytes": ("load_bytes", "gauge", "Bytes that the load of the table has received from the server."),
    "load.part": (
        "load_ratio",
        "gauge",
        "The fraction of the table's pages that its load has read.",
    ),
    "load.rows_per_second": ("load_rows_per_second", "gauge", "Rows per second of the load of the table."),
    "load.eta_seconds": (
        "load_left_seconds",
        "gauge",
        "Estimated seconds until the table is loaded.",
    ),
}


@dataclass(frozen=True)
class MirrorMetrics:
    """The state of a mirror at one moment.

    Attributes:
        slot: the slot's name.
        running: whether the mirror runs.
        tables: the state of each table, sorted by name; during an outage, the state before it. Empty before the mirror
            knows its tables.
        points: how many points are recorded; None before the mirror knows its tables.
        history_lag_bytes: bytes of WAL between the position of the histories and the end of the server's WAL: the lag
            of the fresh view. None until the first load is complete, or if the server did not answer.
        kept_bytes: bytes of WAL that the server keeps for the slot; None if there is no slot, or no answer.
        backlog_bytes: bytes of segments that are not in the histories yet; None until the
            first load is complete.
        paused: whether the capture is paused because of this backlog.
    """

    slot: str
    running: bool
    tables: tuple[TableStatus, ...]
    points: int | None
    history_lag_bytes: int | None
    kept_bytes: int | None = None
    backlog_bytes: int | None = None
    paused: bool = False

    def __post_init__(self) -> None:
        expect_list("tables", self.tables)

    @property
    def stopped(self) -> int:
        """The number of tables that are stopped, or whose history is."""
        return sum(each.state == "stopped" or each.history_error is not None for each in self.tables)

    def to_prometheus(self) -> str:
        """Returns the metrics in Prometheus' text format, without unknown values."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        # A slot's name has no character that needs escaping.
        slot = f'slot="{self.slot}"'
        stopped = None if self.points is None else self.stopped
        for name, value, what in (
            ("running", int(self.running), "1 while the mirror runs, else 0."),
            ("points", self.points, "Points in time that can be read."),
            ("history_lag_bytes", self.history_lag_bytes, "Bytes of WAL that the histories lack."),
            ("kept_bytes", self.kept_bytes, "Bytes of WAL that the server keeps for the slot."),
            ("backlog_bytes", self.backlog_bytes, "Bytes of segments that are not in the histories yet."),
            ("paused", int(self.paused), "1 while the capture pauses because of the backlog, else 0."),
            ("stopped_tables", stopped, "Tables that are stopped, or whose history is stopped."),
        ):
            if value is not None:
                yield from _headed(f"{_NAME}_{name}", "gauge", what)
                yield f"{_NAME}_{name}{{{slot}}} {value}"
        for attribute, (name, kind, what) in _OF_TABLES.items():
            of, _, attribute = attribute.rpartition(".")
            objects = [(each.table, each.load if of else each) for each in self.tables]
            found = [(table, getattr(each, attribute)) for table, each in objects if each is not None]
            known = [(table, value) for table, value in found if value is not None]
            if known:
                yield from _headed(f"{_NAME}_{name}", kind, what)
            for table, value in known:
                yield f'{_NAME}_{name}{{{slot},table="{_escaped(table)}"}} {value}'


def _headed(name: str, kind: str, what: str) -> tuple[str, str]:
    return f"# HELP {name} {what}", f"# TYPE {name} {kind}"


def _escaped(text: str) -> str:
    r"""
    >>> print(_escaped('public."a\nb"'))
    public.\"a\nb\"
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MirrorMeter:
    """Reads the metrics of a mirror. Concurrent calls share one reading.

    Args:
        read: returns the metrics.
    """

    def __init__(self, read: Callable[[], MirrorMetrics]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._last: tuple[float, MirrorMetrics] | None = None

    def read(self, within_seconds: float = 0.0) -> MirrorMetrics:
        """Returns the current metrics. Those that another call read this recently may be used again."""
        with self._lock:
            if self._last is not None and time.monotonic() - self._last[0] < within_seconds:
                return self._last[1]
            found = self._read()
            self._last = time.monotonic(), found
            return found
