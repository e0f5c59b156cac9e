// tid as text, for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstdint>
#include "columns/column.hpp"
#include "simd/avx2/numerics.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// Copies texts like (block,offset), with at most nine digits for the block and four for the offset. Such numbers never
// exceed their limits. `out` must have space for the cells' bytes and SLACK.
inline bool tids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                 const Column& column) noexcept {
    if (column.statistics.longest > 16 || column.statistics.shortest < 5) return false;
    const __m128i zero = _mm_set1_epi8('0'), nine = _mm_set1_epi8(9);
    uint32_t mismatch = 0, bad = 0;  // errors: any bit of `mismatch`, the highest bit of `bad`
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint32_t length = static_cast<uint32_t>(cells[i].length) & present;
        const uint8_t* p = source.base + (cells[i].offset & present);
        const __m128i x = load(p), d = _mm_sub_epi8(x, zero);
        store(out, x);
        const uint32_t in_range = (uint32_t{1} << length) - 1;
        const auto mask = [&](__m128i lanes) { return static_cast<uint32_t>(_mm_movemask_epi8(lanes)) & in_range; };
        const uint32_t digits = mask(_mm_cmpeq_epi8(_mm_min_epu8(d, nine), d)), zeros = mask(_mm_cmpeq_epi8(x, zero));
        const uint32_t comma = _tzcnt_u32(mask(_mm_cmpeq_epi8(x, _mm_set1_epi8(','))) | 1 << 16);
        const uint32_t block = comma - 1, offset = length - 2 - comma;
        bad |= ((block - 1) | (9 - block) | (offset - 1) | (4 - offset)) & present;
        // Only the parentheses and the comma are not digits. No number begins with a zero before another digit.
        uint32_t wrong = (digits | 1 | 1 << comma | (in_range ^ in_range >> 1)) ^ in_range;
        wrong |= (zeros & (2 | 2 << comma)) & digits >> 1;
        wrong |= (uint32_t{*p} ^ '(') | (uint32_t{p[(length - 1) & present]} ^ ')');
        mismatch |= wrong & present;
        out += length;
        at += static_cast<int32_t>(length);
        offsets[i + 1] = at;
    }
    return !mismatch && !(bad >> 31);
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
