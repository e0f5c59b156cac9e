from collections.abc import Sequence
from typing import Any

from pgoutput_fast.schema.column_types import ColumnType

def convert(
    column_type: ColumnType,
    values: Sequence[bytes | None],
    binary: bool,
    exported: bool = False,
    padding: int = 64,
) -> tuple[Any, list[tuple[int, int, bool]]]: ...
def hold_memory(milliseconds: int) -> None: ...
def use_vectors(level: str | None = None) -> str: ...
def refused_quickly(column_type: ColumnType, values: Sequence[bytes | None], binary: bool) -> bool: ...
