"""What a mirror has stored beside its tables."""
