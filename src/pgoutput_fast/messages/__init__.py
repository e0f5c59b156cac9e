"""Single messages, read field by field: to describe them, and to find their ends."""
