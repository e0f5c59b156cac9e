"""What each stage costs, and what the whole costs beside memcpy, a CSV reader and plain Python."""
