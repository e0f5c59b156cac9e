from typing import TypedDict

import pyarrow as pa

class ControlMessages(TypedDict):
    messages: list[int]
    begun: pa.Array
    xids: pa.Array
    lsn: int
    lsn_before: tuple[int, int]

def control_messages(array: pa.Array, context: int, settled: bool) -> ControlMessages: ...
def boundary_of(payload: bytes) -> tuple[int, int, int, int, bytes, bool] | None: ...
def is_origin(payload: bytes) -> bool: ...
