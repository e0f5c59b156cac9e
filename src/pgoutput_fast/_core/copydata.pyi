from collections.abc import Mapping

import pyarrow as pa

FUNCTIONS: tuple[str, ...]
OPEN: int
ENDED: int
FAILED: int
COMMAND_OK: int
TUPLES_OK: int
COPY_OUT: int
COPY_BOTH: int

class CopyData:
    def __init__(self, functions: Mapping[str, int]) -> None: ...
    def take(self, connection: int, most_bytes: int, first_ms: int, more_ms: int) -> tuple[pa.Array, int]: ...
    def send(self, connection: int, query: bytes) -> bool: ...
    def end(self, connection: int) -> bool: ...
    def result(self, connection: int, milliseconds: int) -> tuple[int, str | None, str] | None: ...
    def error(self, connection: int) -> str: ...
