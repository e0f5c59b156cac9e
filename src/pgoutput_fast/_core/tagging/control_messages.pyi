from typing import TypedDict

import pyarrow as pa

LSNS_KEPT: int

class ControlMessages(TypedDict):
    messages: list[int]
    begun: pa.Array
    xids: pa.Array
    lsns: list[int]
    lsns_before: tuple[list[int], list[int]]

def control_messages(array: pa.Array, context: int, seen_end: bool) -> ControlMessages: ...
def boundary_of(payload: bytes) -> tuple[int, int, int, int, bytes, bool] | None: ...
def is_origin(payload: bytes) -> bool: ...
