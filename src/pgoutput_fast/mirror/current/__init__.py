"""Tables with the current rows: one row for each row of the server's table."""
