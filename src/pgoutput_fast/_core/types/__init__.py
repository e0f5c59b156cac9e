"""Text and binary forms of each type as Arrow values."""
