// inet and cidr as text, for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstdint>
#include "columns/column.hpp"
#include "simd/avx2/numerics.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// Copies IPv4 addresses like 192.168.0.1 or 10.0.0.0/8, and checks them. A cidr always has a prefix length. A mask has
// one bit per character. `out` must have space for the cells' bytes and SLACK.
template <bool is_cidr>
bool networks(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
              const Column& column) noexcept {
    if (column.statistics.longest > 18 || column.statistics.shortest < 7) return false;
    uint32_t wrong = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint32_t length = static_cast<uint32_t>(cells[i].length) & present;
        const __m256i x = load_wide(source.base + (cells[i].offset & present));
        store_wide(out, x);
        const uint32_t in_range = (uint32_t{1} << length) - 1;
        const auto are = [&](char c) { return mask_of(_mm256_cmpeq_epi8(x, _mm256_set1_epi8(c))) & in_range; };
        // Characters that are not digits are wrong anyway, even if they compare as greater.
        const auto above = [&](char c) { return mask_of(_mm256_cmpgt_epi8(x, _mm256_set1_epi8(c))); };
        const uint32_t dots = are('.'), slash = are('/'), zeros = are('0');
        const uint32_t digits = above('/') & ~above('9') & in_range;
        const uint32_t above_1 = above('1'), above_2 = above('2'), above_3 = above('3');
        const uint32_t above_4 = above('4'), above_5 = above('5');
        // The starts of numbers, and of numbers with two and three digits.
        const uint32_t starts = digits & ~(digits << 1), twos = starts & digits >> 1, threes = twos & digits >> 2;
        // Every number is at the beginning of the text or follows a dot or a slash. The prefix length is the last one.
        const uint32_t prefix = slash << 1;
        uint32_t bad = (digits | dots | slash) ^ in_range;
        bad |= starts ^ (dots << 1 | prefix | 1);
        bad |= static_cast<uint32_t>(_mm_popcnt_u32(dots)) ^ 3;
        bad |= static_cast<uint32_t>(dots > slash - 1);
        bad |= (is_cidr ? slash == 0 : 0) | _blsr_u32(slash);
        bad |= (twos & zeros) | (threes & digits >> 3);
        // Greater than 255, or than 32 in the prefix length.
        const uint32_t from_56 = (above_5 | (above_4 & above_5 >> 1)) >> 1;
        bad |= threes & (above_2 | (above_1 & from_56));
        bad |= prefix & (threes | (twos & (above_3 | (above_2 & above_2 >> 1))));
        wrong |= bad & present;
        out += length;
        at += static_cast<int32_t>(length);
        offsets[i + 1] = at;
    }
    return !wrong;
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
