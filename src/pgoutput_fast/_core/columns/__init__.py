"""Values in blocks, and blocks as Arrow arrays."""
