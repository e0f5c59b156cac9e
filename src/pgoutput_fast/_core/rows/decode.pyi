from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from pgoutput_fast._core.tagging.records import RecordTables
from pgoutput_fast._core.tagging.state_json import Described
from pgoutput_fast._core.tagging.waiting import WaitingRows
from pgoutput_fast.catalog.relations import Catalog, Relation
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.schema.options import Options

class NativeDecoder:
    options: Options
    types: UserTypes
    def __init__(
        self, options: Options, catalog: Catalog | None = None, values: dict[str, Any] | None = None
    ) -> None: ...
    def state_values(self) -> tuple[dict[str, Any], Described]: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def between_transactions(self) -> bool: ...
    @property
    def open_plain(self) -> tuple[int, int, int] | None: ...
    @property
    def last_commit(self) -> tuple[int, int]: ...
    @property
    def relations(self) -> tuple[list[Relation], int]: ...
    @property
    def last_message_lsn(self) -> int: ...
    def skip_messages(self, lsn: int) -> None: ...
    def start_session(self) -> None: ...
    def learn_from(self, other: NativeDecoder, start: int) -> int: ...
    def tentative(self) -> AbstractContextManager[None]: ...
    def decode(
        self,
        arrays: list[pa.Array],
        lsn: pa.Array | None,
        seq: pa.Array | None,
        tagged_first: Sequence[tuple[WaitingRows | pa.RecordBatch, tuple[int, int] | None]] | None = None,
    ) -> tuple[list[tuple[Relation, pa.RecordBatch]], RecordTables]: ...
    def tag(
        self, arrays: list[pa.Array], lsn: pa.Array | None, seq: pa.Array | None, changes_only: bool = False
    ) -> tuple[pa.RecordBatch, RecordTables]: ...
    def tag_waiting(
        self, arrays: list[pa.Array], lsn: pa.Array | None, seq: pa.Array | None
    ) -> tuple[list[WaitingRows | pa.RecordBatch], RecordTables]: ...
    def decode_ended(
        self,
        array: pa.Array,
        lsn: pa.Array | None,
        seq: pa.Array | None,
        open_rows: Callable[[], Sequence[tuple[WaitingRows | pa.RecordBatch, None]]],
    ) -> tuple[
        list[tuple[Relation, pa.RecordBatch]], list[WaitingRows | pa.RecordBatch], RecordTables, bool
    ]: ...
    def decode_committed(
        self, rows: Sequence[tuple[pa.RecordBatch, tuple[int, int] | None]]
    ) -> tuple[list[tuple[Relation, pa.RecordBatch]], RecordTables]: ...
    def decode_tagged(
        self, batch: pa.RecordBatch
    ) -> tuple[list[tuple[Relation, pa.RecordBatch]], RecordTables]: ...
