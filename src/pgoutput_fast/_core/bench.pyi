from typing import Any

import pyarrow as pa

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.schema.column_types import ColumnType
from pgoutput_fast.schema.options import Options

def time_headers(array: pa.Array) -> tuple[float, float, int]: ...
def time_stages(array: pa.Array, options: Options) -> tuple[dict[str, float], list[tuple[Relation, Any]]]: ...
def time_convert(column_type: ColumnType, values: pa.Array, binary: bool, passes: int) -> list[float]: ...
