// The most expensive loops, for processors with AVX2. A loop accepts only the form that nearly all cells have, and
// refuses the cells if it sees anything else, valid or not. The portable converters then decide. So they alone define
// what is valid, and results do not depend on the processor.
//
// Preconditions (ColumnStatistics::readable_around): three ranges must be readable. They are the READ_BEFORE bytes
// before each present cell, the READ_AFTER bytes after it, and the first READ_AFTER bytes of the source. The loops
// for fixed-width types get no missing cells and no empty ones.
//
// The number of instructions determines the speed. So two cells share a register if they fit. The loops collect errors
// and check them once at the end. `wrong_characters` has a lane per character, and any nonzero lane is an error. In
// `mismatch` any bit is an error. In `bad` the highest bit is an error: the sign of a difference.
//
// Names in the loops: `expected` has the characters that every value has, and '0' at the position of a digit. `largest`
// has the largest digit at each position. `compact` is a shuffle that removes the characters between the digits.
#pragma once
#include <cstdint>

#include "simd/tables.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#define PGO_AVX2 1
#include <immintrin.h>

#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

inline __m128i load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline __m256i load_wide(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(uint8_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
inline void store_wide(uint8_t* p, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline __m128i last_lanes(uint32_t n) { return load(MASKS.last + 16 + n); }
inline __m256i last_lanes_wide(uint32_t n) { return load_wide(MASKS.last + n); }
inline __m256i first_lanes_wide(uint32_t n) { return load_wide(MASKS.first + 64 - n); }
// One bit per lane: the highest one of its eight.
inline uint32_t mask_of(__m256i lanes) { return static_cast<uint32_t>(_mm256_movemask_epi8(lanes)); }
inline bool is_zero(__m128i v) { return _mm_testz_si128(v, v); }
inline bool is_zero(__m256i v) { return _mm256_testz_si256(v, v); }

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
