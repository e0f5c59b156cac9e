"""Vector loops, and the choice of those that this machine may run."""
