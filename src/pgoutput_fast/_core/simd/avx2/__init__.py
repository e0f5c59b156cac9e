"""Vector loops for AVX2."""
