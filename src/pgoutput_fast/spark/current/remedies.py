"""What a user of a sink of current tables can do if a table cannot follow its changes."""

from __future__ import annotations

from pgoutput_fast.tables.errors import RELOAD

__all__ = ["LOAD_AGAIN", "START_AGAIN"]

# Notes prevent a sink from applying messages twice, so the remedy is another target.
START_AGAIN = (
    "Start the query with a new checkpoint and into another target, so that it reads all segments. If the segments do "
    "not begin with the tables, load the target with a Mirror first"
)
LOAD_AGAIN = f"If a mirror has loaded the table, load it again with {RELOAD}. Otherwise s{START_AGAIN[1:]}"
