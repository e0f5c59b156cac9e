"""PostgreSQL's logical replication bytes as typed columns.

`decode` converts pgoutput messages to Arrow record batches, and `Decoder` does so incrementally. `tag` and
`decode_tagged` split the work into parts that run anywhere and in any order. `unframe` extracts messages from a
walsender's frames, and `read_recvlogical` from a file of pg_recvlogical. `follow` decodes the changes of a slot.
`describe` shows one message as text. `pgoutput_fast.spark` is the API for PySpark. `pgoutput_fast.encode` writes
messages. Importing this package imports neither PySpark nor psycopg2.
"""

from pgoutput_fast.base.stopping import expect_program as _expect_program

# Ctrl-C may be pressed during the other imports, which take a fraction of a second.
_expect_program()

# ruff: noqa: E402
from pgoutput_fast.base.errors import DecodeError, SpillError
from pgoutput_fast.catalog.relations import Catalog, Column, Relation
from pgoutput_fast.catalog.user_types import TypeField, UserType, UserTypes
from pgoutput_fast.decoding.decoder import Decoder, decode, decode_tagged, tag
from pgoutput_fast.decoding.framing import Unframed, unframe
from pgoutput_fast.decoding.position import Position
from pgoutput_fast.decoding.result import Decoded, RelationBatch
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.live.follow import follow
from pgoutput_fast.messages.describe import describe
from pgoutput_fast.messages.recvlogical import RecvlogicalFile, read_recvlogical
from pgoutput_fast.protocol.lsn import format_lsn, parse_lsn
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import TAGGED_SCHEMA

__all__ = [
    "TAGGED_SCHEMA",
    "Catalog",
    "Column",
    "DecodeError",
    "Decoded",
    "Decoder",
    "Options",
    "Position",
    "RecvlogicalFile",
    "Relation",
    "RelationBatch",
    "SpillError",
    "StreamState",
    "TypeField",
    "Unframed",
    "UserType",
    "UserTypes",
    "decode",
    "decode_tagged",
    "describe",
    "follow",
    "format_lsn",
    "parse_lsn",
    "read_recvlogical",
    "tag",
    "unframe",
]

__version__ = "0.1.0"
