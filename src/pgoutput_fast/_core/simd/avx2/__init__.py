"""Vector loops for AVX-512."""
