"""A running mirror: arguments, life cycle, status and metrics."""
