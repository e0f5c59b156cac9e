from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

def is_comparable(kind: pa.DataType) -> bool: ...
def row_hashes(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.uint64]: ...
def unequal(columns: Sequence[pa.ChunkedArray], ones: Any, others: Any) -> npt.NDArray[np.bool_]: ...
