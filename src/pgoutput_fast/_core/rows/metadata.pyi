CHANGE_TYPES: tuple[str, ...]
