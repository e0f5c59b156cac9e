"""Columns of lists of names, such as `_unchanged`: the rows by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["RowNumbers", "naming_rows", "with_names"]

RowNumbers: TypeAlias = npt.NDArray[np.int64]

_NAMES = pa.list_(pa.string())


def naming_rows(lists: pa.ChunkedArray) -> dict[str, RowNumbers]:
    """{name: the numbers of the rows with it, ascending}.

    >>> import pyarrow as pa
    >>> naming_rows(pa.chunked_array([[["a"], None, ["b", "a"]]]))
    {'a': array([0, 2]), 'b': array([2])}
    """
    if lists.null_count == len(lists):
        return {}
    whole = lists.combine_chunks()
    encoded = pc.dictionary_encode(pc.list_flatten(whole))
    if not len(encoded):
        return {}
    codes = encoded.indices.to_numpy()
    rows = pc.list_parent_indices(whole).to_numpy().astype(np.int64)
    # numpy sorts integers of 8 and 16 bits in linear time, and names are few.
    narrow = codes.astype(np.min_scalar_type(len(encoded.dictionary)))
    rows = rows[np.argsort(narrow, kind="stable")]
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))[:-1]
    return dict(zip(encoded.dictionary.to_pylist(), np.split(rows, ends), strict=True))


def with_names(named: Mapping[str, RowNumbers], count: int) -> pa.Array:
    """The inverse: `count` lists with the names of their rows in the order of `named`; null for none.

    >>> import numpy as np
    >>> with_names({"a": np.array([0, 2]), "b": np.array([2])}, 3).to_pylist()
    [['a'], None, ['a', 'b']]
    """
    if not any(len(rows) for rows in named.values()):
        return pa.nulls(count, _NAMES)
    rows = np.concatenate(list(named.values()))
    codes = np.repeat(np.arange(len(named)), [len(each) for each in named.values()])
    names = pa.array(list(named), pa.string()).take(pa.array(codes[np.argsort(rows, kind="stable")]))
    sizes = np.bincount(rows, minlength=count)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=pa.array(sizes == 0))
