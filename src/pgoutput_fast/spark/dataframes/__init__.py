"""DataFrames of tagged payloads in, typed DataFrames out."""
