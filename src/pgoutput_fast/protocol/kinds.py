"""Message kinds of pgoutput: the one table of tag bytes and names, and sets of kinds.

Names are PostgreSQL's own (`LOGICAL_REP_MSG_...` in logicalproto.h). `_core/protocol/kinds.pxd` is generated:
after a change here run `python ci/generate_tables.py` and compile again.

This module imports nothing of the package, so that the generator can load it before anything is compiled.
"""

from __future__ import annotations

# A message's first byte.
MSG_BEGIN = ord("B")
MSG_COMMIT = ord("C")
MSG_BEGIN_PREPARE = ord("b")
MSG_PREPARE = ord("P")
MSG_COMMIT_PREPARED = ord("K")
MSG_ROLLBACK_PREPARED = ord("r")
MSG_STREAM_START = ord("S")
MSG_STREAM_STOP = ord("E")
MSG_STREAM_COMMIT = ord("c")
MSG_STREAM_ABORT = ord("A")
MSG_STREAM_PREPARE = ord("p")
MSG_ORIGIN = ord("O")
MSG_RELATION = ord("R")
MSG_TYPE = ord("Y")
MSG_INSERT = ord("I")
MSG_UPDATE = ord("U")
MSG_DELETE = ord("D")
MSG_TRUNCATE = ord("T")
MSG_MESSAGE = ord("M")

MESSAGE_KINDS = {
    MSG_BEGIN: "Begin",
    MSG_COMMIT: "Commit",
    MSG_BEGIN_PREPARE: "Begin Prepare",
    MSG_PREPARE: "Prepare",
    MSG_COMMIT_PREPARED: "Commit Prepared",
    MSG_ROLLBACK_PREPARED: "Rollback Prepared",
    MSG_STREAM_START: "Stream Start",
    MSG_STREAM_STOP: "Stream Stop",
    MSG_STREAM_COMMIT: "Stream Commit",
    MSG_STREAM_ABORT: "Stream Abort",
    MSG_STREAM_PREPARE: "Stream Prepare",
    MSG_ORIGIN: "Origin",
    MSG_RELATION: "Relation",
    MSG_TYPE: "Type",
    MSG_INSERT: "Insert",
    MSG_UPDATE: "Update",
    MSG_DELETE: "Delete",
    MSG_TRUNCATE: "Truncate",
    MSG_MESSAGE: "Message",
}
"""The names of messages in the protocol, by their tag byte."""

KIND_NAMES = {kind: name.lower().replace(" ", "_") for kind, name in MESSAGE_KINDS.items()}
"""Their names in tables: the values of the `kind` columns."""

SESSION_MARK = 0
"""The kind of a tagged row that marks the start of a session."""

# These kinds are above those of all messages, so the statistics of a Parquet file tell whether it has them.
REJECTED = 126
"""The kind of a tagged row of a message that tagging rejected. Its payload says why, and has the message."""

UNKNOWN_OUTCOME = 127
"""The kind of a tagged row that says from where on it is unknown whether a transaction committed."""

# A tuple's first byte.
TUPLE_NEW = ord("N")
TUPLE_KEY = ord("K")
TUPLE_OLD = ord("O")

# A cell's first byte.
COLUMN_NULL = ord("n")
COLUMN_UNCHANGED = ord("u")
COLUMN_TEXT = ord("t")
COLUMN_BINARY = ord("b")

# ---- sets ----------------------------------------------------------------------------------------------------------

ROW_CHANGES = (MSG_INSERT, MSG_UPDATE, MSG_DELETE)
CHANGES = (*ROW_CHANGES, MSG_TRUNCATE)
# In the committed view these wait for the commit of their transaction. A logical message may have no transaction.
KEPT_UNTIL_COMMIT = (*CHANGES, MSG_MESSAGE)

DESCRIPTIONS = (MSG_RELATION, MSG_TYPE)

# After one of these, a transaction or a stream block is open.
OPENINGS = (MSG_BEGIN, MSG_BEGIN_PREPARE, MSG_STREAM_START)
# These close the open transaction or stream block; without one they are an error.
CLOSINGS = (
    MSG_COMMIT,
    MSG_PREPARE,
    MSG_STREAM_STOP,
    MSG_STREAM_COMMIT,
    MSG_STREAM_ABORT,
    MSG_STREAM_PREPARE,
    MSG_COMMIT_PREPARED,
    MSG_ROLLBACK_PREPARED,
)
BOUNDARIES = (*OPENINGS, *CLOSINGS)

COMMITS = (MSG_COMMIT, MSG_STREAM_COMMIT, MSG_COMMIT_PREPARED)
# A Stream Abort may roll back only a subtransaction.
ROLLBACKS = (MSG_STREAM_ABORT, MSG_ROLLBACK_PREPARED)
# These give the outcome of a transaction.
OUTCOMES = (*COMMITS, *ROLLBACKS)
# The kinds of rows that say how a transaction ended, if that is known.
OUTCOME_ROWS = (*OUTCOMES, UNKNOWN_OUTCOME)
# After one of these, the server need not send the transaction again: it is committed, rolled back or prepared.
SENT_IN_FULL = (*COMMITS, MSG_ROLLBACK_PREPARED, MSG_PREPARE, MSG_STREAM_PREPARE)
