"""Tables in a lake: files that many processes wrote become rows of a table in one commit."""
