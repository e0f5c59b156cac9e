"""Tables in a lake: files that other processes wrote become rows of a table in one commit."""
