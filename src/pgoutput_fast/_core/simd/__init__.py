"""Vector loops, and which of them this machine may run."""
