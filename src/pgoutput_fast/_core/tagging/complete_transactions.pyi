import pyarrow as pa

def plain_stretches(
    array: pa.Array, between: bool, least: int, announced: tuple[int, int] | None = None
) -> list[tuple[int, int]]: ...
