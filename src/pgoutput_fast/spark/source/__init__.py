"""The format `pgoutput`: batch and streaming reads of segments, and reads of a table in a snapshot."""
