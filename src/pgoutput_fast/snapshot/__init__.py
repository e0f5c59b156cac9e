"""The initial load: a slot, the snapshot at which it begins, and tables read in it. Needs psycopg2."""

from pgoutput_fast.base.extras import explained as _explained

try:
    from pgoutput_fast.snapshot.export import SnapshotError
    from pgoutput_fast.snapshot.progress import LoadProgress, progress_bar
    from pgoutput_fast.snapshot.snapshot import Loaded, Snapshot
except ModuleNotFoundError as problem:
    raise _explained(problem) from None

__all__ = ["LoadProgress", "Loaded", "Snapshot", "SnapshotError", "progress_bar"]
