"""Files that last: paths, stores, and what must be on the disk before it counts.

Users import one name from here, `table_directory`.
"""

from pgoutput_fast.storage.table_directories import table_directory

__all__ = ["table_directory"]
