"""Durable files: paths, stores, fsync and locks.

Users import one name from here, `table_directory`.
"""

from pgoutput_fast.storage.table_directories import table_directory

__all__ = ["table_directory"]
