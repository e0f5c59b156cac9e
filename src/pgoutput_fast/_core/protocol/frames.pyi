from collections.abc import Sequence

import pyarrow as pa

def unframe_arrays(
    arrays: Sequence[pa.Array],
) -> tuple[pa.Array, list[pa.Array], list[pa.Array], pa.Array]: ...
