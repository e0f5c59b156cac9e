import pyarrow as pa

def complete_ranges(
    array: pa.Array, between: bool, least: int, announced: tuple[int, int] | None = None
) -> list[tuple[int, int]]: ...
