from typing import Any

class _Exported:
    """What `batch_of` and `array_of` hand to pyarrow: any Arrow library can import it."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...
