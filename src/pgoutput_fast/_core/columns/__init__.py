"""Columns: their memory blocks, their buffers, and their export as Arrow arrays."""
