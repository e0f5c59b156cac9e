"""The fresh view: a current table and the later changes of its history, as one table."""
