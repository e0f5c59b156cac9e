"""Chooses the short files of a table that are worth joining."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pgoutput_fast.tables.table import Version

__all__ = ["to_join"]

# A file is short if it has at most an eighth of the file size. Short files fall into three classes, with at most an
# eighth of the size of the class before. If a class has more than eight files, they are joined, with all files of
# smaller classes. So rows of long files are not rewritten for every short one.
_CLASSES, _MOST_ALIKE = 3, 8
# One commit joins at most about this multiple of the file size. The next one continues.
_MOST_JOINED = 2


def to_join(
    version: Version, file_bytes: int, ordered: Callable[[list[int]], Sequence[int]]
) -> Sequence[int]:
    """The files that one commit should join; none while there are few of them.

    Args:
        version: of the table.
        file_bytes: the largest size of a file, roughly.
        ordered: brings files in the order of their rows, and may leave some out.
    """
    sizes = np.array([file.nbytes for file in version.files], np.int64)
    limits = file_bytes // _MOST_ALIKE ** np.arange(1, _CLASSES + 1)
    # 0 for files that are not short.
    classes = np.searchsorted(-limits, -sizes, side="right")
    full = np.flatnonzero(np.bincount(classes, minlength=_CLASSES + 1)[1:] > _MOST_ALIKE)
    if not len(full):
        return []
    short = ordered(np.flatnonzero(classes > full[0]).tolist())
    total = np.cumsum([sizes[k] for k in short])
    return short[: max(2, int(np.searchsorted(total, _MOST_JOINED * file_bytes, side="right")))]
