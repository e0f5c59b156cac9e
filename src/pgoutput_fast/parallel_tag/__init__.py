"""Tags partitioned payloads in parallel: summaries of the partitions give the state at the start of each one."""
