from typing import TypedDict

import pyarrow as pa

class ControlMessages(TypedDict):
    messages: list[int]
    begun: pa.Array
    xids: pa.Array
    message_at: pa.Array
    message_lsn: pa.Array
    lsn_before: tuple[int, int]

def control_messages(array: pa.Array, context: int, settled: bool, highest: int) -> ControlMessages: ...
def boundary_of(payload: bytes) -> tuple[int, int, int, int, bytes, bool] | None: ...
def is_origin(payload: bytes) -> bool: ...
