import pyarrow as pa

from pgoutput_fast.catalog import Relation
from pgoutput_fast.options import Options
from pgoutput_fast.user_types import UserTypes

CHANGE_TYPES: tuple[str, ...]

class RelationRows:
    relation: Relation
    schema: pa.Schema
    def take_batches(self) -> list[pa.RecordBatch]: ...

def make_rows(relation: Relation, options: Options, types: UserTypes) -> RelationRows: ...
