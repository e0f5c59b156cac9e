import pyarrow as pa

class WaitingRows:
    txn: int
    rows: int
    nbytes: int
    buffer: tuple[int, int] | None
    def batch(self) -> pa.RecordBatch: ...
    def copied(self) -> WaitingRows: ...
