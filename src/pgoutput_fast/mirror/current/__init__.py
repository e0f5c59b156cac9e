"""Tables with the current rows of the server's tables."""
