from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_Groups: TypeAlias = npt.NDArray[np.int32]
_Mask: TypeAlias = npt.NDArray[np.bool_]
_Rows: TypeAlias = npt.NDArray[np.int64]

def group_rows(hashes: npt.NDArray[np.uint64]) -> tuple[_Groups, int]: ...
def candidate_pairs(groups: _Groups, count: int, puts: _Mask) -> tuple[_Rows, _Rows]: ...
def cancelled(groups: _Groups, count: int, puts: _Mask) -> _Mask: ...
