"""A pandas column that wraps an Arrow array, for pandas UDFs. Spark converts the column back to Arrow.

pandas holds dates, lists and structs as Python objects. With these, each value would be converted twice, and timestamps
outside the years 1 to 9999 could not be represented. `ArrowBacked` supports no arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

__all__ = ["ArrowBacked"]


class _ArrowBackedType(pd.api.extensions.ExtensionDtype):  # type: ignore[misc]
    name = "arrow_backed"
    type = object
    kind = "O"

    @classmethod
    def construct_array_type(cls) -> Any:
        return ArrowBacked


class ArrowBacked(pd.api.extensions.ExtensionArray):  # type: ignore[misc]
    """A pandas column that passes on an Arrow array unchanged.

    Args:
        array: the Arrow array, of any type.
    """

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    @classmethod
    def _from_sequence(cls, scalars: Sequence[Any], *, dtype: Any = None, copy: bool = False) -> ArrowBacked:
        return cls(scalars._array if isinstance(scalars, ArrowBacked) else pa.array(scalars))

    @classmethod
    def _concat_same_type(cls, to_concat: Sequence[ArrowBacked]) -> ArrowBacked:
        return cls(pa.concat_arrays([each._array for each in to_concat]))

    @property
    def dtype(self) -> Any:
        return _ArrowBackedType()

    @property
    def nbytes(self) -> int:
        return int(self._array.nbytes)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, int | np.integer):
            # Always None. Callers read single values only to check whether they are columns themselves.
            return None
        if isinstance(item, slice):
            return ArrowBacked(self._array[item])
        return ArrowBacked(self._array.take(pa.array(np.arange(len(self))[np.asarray(item)])))

    def isna(self) -> np.ndarray[Any, Any]:
        return np.asarray(self._array.is_null().to_numpy(zero_copy_only=False))

    def take(self, indices: Any, *, allow_fill: bool = False, fill_value: Any = None) -> ArrowBacked:
        places = np.asarray(indices)
        return ArrowBacked(self._array.take(pa.array(places, mask=places < 0 if allow_fill else None)))

    def copy(self) -> ArrowBacked:
        return ArrowBacked(self._array)

    def map(self, mapper: Any, na_action: Any = None) -> ArrowBacked:
        """Returns the column itself. Spark maps only conversions of Python objects, and the column has none."""
        return self

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        return self._array if type is None or type == self._array.type else self._array.cast(type)
