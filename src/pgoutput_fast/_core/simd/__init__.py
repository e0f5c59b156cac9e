"""Vector loops, and their selection for the processor."""
