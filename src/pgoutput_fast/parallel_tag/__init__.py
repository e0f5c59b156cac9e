"""Tags partitioned payloads in parallel: summaries of the partitions provide the state at their beginnings."""
