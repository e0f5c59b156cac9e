"""Tables in a lake: their formats, files, positions and commits."""
