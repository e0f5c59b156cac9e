from typing import Any

import pyarrow as pa

from pgoutput_fast.catalog import Relation
from pgoutput_fast.options import Options
from pgoutput_fast.types import ColumnType

def time_headers(array: pa.Array) -> tuple[float, float, int]: ...
def time_stages(array: pa.Array, options: Options) -> tuple[dict[str, float], list[tuple[Relation, Any]]]: ...
def time_convert(column_type: ColumnType, values: pa.Array, binary: bool, passes: int) -> list[float]: ...
