"""Tables in a lake: files of other processes become rows of a table in one commit."""
