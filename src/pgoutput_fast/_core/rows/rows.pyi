import pyarrow as pa

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.schema.options import Options

class RelationRows:
    relation: Relation
    schema: pa.Schema
    def take_batches(self) -> list[pa.RecordBatch]: ...

def make_rows(relation: Relation, options: Options, types: UserTypes) -> RelationRows: ...
