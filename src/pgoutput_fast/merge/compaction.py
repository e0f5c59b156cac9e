"""Chooses short files of a table to join."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pgoutput_fast.tables.data_files import by_bounds
from pgoutput_fast.tables.table import Version

__all__ = ["to_join"]

# A file is short if it has at most an eighth of the file size. Short files fall into three classes, with at most an
# eighth of the size of the class before. If a class has more than eight files, they are joined, with all files of
# smaller classes. So rows of long files are not rewritten for every short one.
_CLASSES, _MOST_ALIKE = 3, 8
# One effect joins at most about this multiple of the file size. The next effect continues.
_MOST_JOINED = 2


def to_join(version: Version, file_bytes: int) -> list[int]:
    """The files that one effect should join, neighbours adjacent; none while there are few of them.

    Args:
        version: of the table.
        file_bytes: the largest size of a file, roughly.
    """
    classes = _classes(version, file_bytes)
    full = np.flatnonzero(np.bincount(classes, minlength=_CLASSES + 1)[1:] > _MOST_ALIKE)
    if not len(full):
        return []
    short = by_bounds(version, np.flatnonzero(classes > full[0]).tolist())
    sizes = np.cumsum([version.files[k].nbytes for k in short])
    return short[: max(2, int(np.searchsorted(sizes, _MOST_JOINED * file_bytes, side="right")))]


def _classes(version: Version, file_bytes: int) -> npt.NDArray[np.int64]:
    """The size classes of the files; 0 for files that are not short."""
    sizes = np.array([file.nbytes for file in version.files], np.int64)
    limits = file_bytes // _MOST_ALIKE ** np.arange(1, _CLASSES + 1)
    return np.searchsorted(-limits, -sizes, side="right")
