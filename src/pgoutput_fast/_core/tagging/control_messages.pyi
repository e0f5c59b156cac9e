from typing import TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

LSNS_KEPT: int

class ControlMessages(TypedDict):
    messages: list[int]
    begun: NDArray[np.int64]
    ended: NDArray[np.int64]
    xids: NDArray[np.uint32]
    commit_lsns: NDArray[np.int64]
    commit_timestamps: NDArray[np.int64]
    relations: list[int]
    relations_before: tuple[list[int], list[int]]
    lsns: list[int]
    lsns_before: tuple[list[int], list[int]]

def control_messages(array: pa.Array, context: int, seen_end: bool) -> ControlMessages: ...
def boundary_of(payload: bytes) -> tuple[int, int, int, int, bytes, bool] | None: ...
def is_origin(payload: bytes) -> bool: ...
