from typing import Any

class _Exported:
    """A column that any Arrow library can import."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...
