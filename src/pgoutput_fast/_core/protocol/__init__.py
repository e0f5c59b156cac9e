"""What the bytes say: fields, boundaries, relations, frames."""
