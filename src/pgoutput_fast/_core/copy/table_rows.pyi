from collections.abc import Callable, Iterable

import pyarrow as pa

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.schema.options import Options

class CopyRows:
    def __init__(
        self,
        relation: Relation,
        options: Options,
        types: UserTypes,
        commit_lsn: int,
        text_columns: Iterable[str] = (),
        *,
        on_batch: Callable[[pa.RecordBatch], object] | None = None,
        window_bytes: int = 0,
    ) -> None: ...
    @property
    def relation(self) -> Relation: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def decoded_bytes(self) -> int: ...
    @property
    def row_count(self) -> int: ...
    def write(self, piece: bytes | bytearray | memoryview) -> int: ...
    def finish(self) -> None: ...
    def take_batches(self) -> list[pa.RecordBatch]: ...
    def take_rejects(self) -> pa.RecordBatch: ...
