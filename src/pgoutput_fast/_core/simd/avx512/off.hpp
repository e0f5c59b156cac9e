// Ends the section that simd/avx512/on.hpp begins.
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC diagnostic pop
#pragma GCC pop_options
#endif
