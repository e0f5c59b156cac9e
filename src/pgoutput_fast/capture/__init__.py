"""Capture from a PostgreSQL server: slots, snapshots, checks and the capture itself.

Needs psycopg2: `pgoutput_fast[capture]`.
"""

from pgoutput_fast.base.extras import explained as _explained

try:
    from pgoutput_fast.capture.metrics import Metrics
    from pgoutput_fast.capture.recorder import Limits
    from pgoutput_fast.capture.retention import Consumers, Retention, retain
    from pgoutput_fast.capture.service import Capture, CaptureBusyError, CaptureError
    from pgoutput_fast.postgres.check import Report, check
    from pgoutput_fast.postgres.findings import Finding
    from pgoutput_fast.postgres.passwords import Dsn, PasswordError
    from pgoutput_fast.postgres.plugin import plugin_options
    from pgoutput_fast.postgres.session import PINS, Server
    from pgoutput_fast.postgres.slots import (
        Slot,
        alter_slot,
        create_slot,
        drop_slot,
        find_slot,
        list_slots,
        temporary_slot,
    )
    from pgoutput_fast.snapshot.export import SnapshotError
    from pgoutput_fast.snapshot.progress import LoadProgress, progress_bar
    from pgoutput_fast.snapshot.snapshot import Loaded, Snapshot
except ModuleNotFoundError as problem:
    raise _explained(problem) from None

__all__ = [
    "PINS",
    "Capture",
    "CaptureBusyError",
    "CaptureError",
    "Consumers",
    "Dsn",
    "Finding",
    "Limits",
    "LoadProgress",
    "Loaded",
    "Metrics",
    "PasswordError",
    "Report",
    "Retention",
    "Server",
    "Slot",
    "Snapshot",
    "SnapshotError",
    "alter_slot",
    "check",
    "create_slot",
    "drop_slot",
    "find_slot",
    "list_slots",
    "plugin_options",
    "progress_bar",
    "retain",
    "temporary_slot",
]
