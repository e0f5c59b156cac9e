import pyarrow as pa

from pgoutput_fast.user_types import UserTypes

BOUNDARY_KINDS: dict[str, str]

class RecordTables:
    types: UserTypes
    @property
    def forgotten(self) -> list[int]: ...
    @property
    def transactions(self) -> pa.RecordBatch: ...
    @property
    def outcomes(self) -> pa.RecordBatch: ...
    @property
    def truncates(self) -> pa.RecordBatch: ...
    @property
    def messages(self) -> pa.RecordBatch: ...
    @property
    def rejects(self) -> pa.RecordBatch: ...
