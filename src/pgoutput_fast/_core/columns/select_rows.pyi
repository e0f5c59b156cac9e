from collections.abc import Sequence
from typing import Any

import pyarrow as pa

def select_rows(
    columns: Sequence[pa.ChunkedArray], choices: Sequence[Any]
) -> list[list[pa.ChunkedArray]]: ...
