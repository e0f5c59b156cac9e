"""PostgreSQL's logical replication bytes as typed columns.

`decode` turns pgoutput messages into Arrow record batches; `Decoder` does it call by call; `tag` and `decode_tagged`
split the work so that it can be done anywhere and in any order; `unframe` takes messages out of a walsender's frames,
and `read_recvlogical` out of a file of pg_recvlogical. `follow` decodes what a slot sends. `describe` shows one message
to a person. `pgoutput_fast.spark` is the API for PySpark. `pgoutput_fast.encode` writes messages. The import of this
package imports neither PySpark nor psycopg2.
"""

from pgoutput_fast.stopping import expect_program as _expect_program

# The other imports take a part of a second, in which somebody may press Ctrl-C.
_expect_program()

# ruff: noqa: E402
from pgoutput_fast.catalog.relations import Catalog, Column, Relation
from pgoutput_fast.catalog.user_types import TypeField, UserType, UserTypes
from pgoutput_fast.decoding.decoder import Decoder, decode, decode_tagged, tag
from pgoutput_fast.decoding.framing import Unframed, unframe
from pgoutput_fast.decoding.position import Position
from pgoutput_fast.decoding.result import Decoded, RelationBatch
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.errors import DecodeError, SpillError
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
