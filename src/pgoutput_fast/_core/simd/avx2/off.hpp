// Ends the section that simd/avx2/on.hpp begins.
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
