"""Files that last: paths, stores, and what must be on the disk before it counts."""
