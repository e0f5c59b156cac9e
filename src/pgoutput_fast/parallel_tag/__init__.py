"""Tags payloads that lie in many partitions: each is summarised, and the summaries say how each begins."""
