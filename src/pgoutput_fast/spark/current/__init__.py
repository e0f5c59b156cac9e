"""Current tables maintained by a streaming query: the tasks reduce and merge, and the driver commits."""
