"""Current tables that a streaming query keeps: the tasks reduce and merge, and the driver commits."""
