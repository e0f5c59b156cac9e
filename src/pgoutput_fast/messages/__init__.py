"""Single messages, read field by field: for a person, and where only their content tells where they end."""
