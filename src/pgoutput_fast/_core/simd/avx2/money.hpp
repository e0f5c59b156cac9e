// money as text, for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstdint>
#include "columns/column.hpp"
#include "simd/avx2/integers.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// Per number of characters after the dollar: the smallest valid number of cents. The entries from SIGNED on are for
// amounts with a minus, where zero is not allowed. No value reaches the entries for impossible lengths.
struct LeastCents {
    int64_t of[2 * SIGNED];
    constexpr LeastCents() : of() {
        for (int64_t& least : of) least = std::numeric_limits<int64_t>::max();
        for (int length = 4; length <= 16; ++length) {
            if (length % 4 == 3) continue;  // it would begin with a comma
            const int digits = length - 1 - (length - 3) / 4;
            of[length] = of[SIGNED + length] = LEAST.of[digits];
        }
        of[4] = 0;
        of[SIGNED + 4] = 1;
    }
};
inline constexpr LeastCents LEAST_CENTS{};

// Reads amounts like -$1,234.50 with at most ten digits before the point. Commas and the point have fixed positions
// from the end.
inline bool moneys(Source source, const Cell* cells, size_t n, int128* out, const Column& column) noexcept {
    if (column.statistics.longest > 18 || n < 2) return false;
    const __m256i expected = _mm256_broadcastsi128_si256(
        _mm_setr_epi8('0', ',', '0', '0', '0', ',', '0', '0', '0', ',', '0', '0', '0', '.', '0', '0'));
    const __m256i largest =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(9, 0, 9, 9, 9, 0, 9, 9, 9, 0, 9, 9, 9, 0, 9, 9));
    const __m256i compact =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(-1, -1, -1, -1, 0, 2, 3, 4, 6, 7, 8, 10, 11, 12, 14, 15));
    __m256i wrong_characters = _mm256_setzero_si256(), bad = wrong_characters;
    uint32_t mismatch = 0;
    for (size_t i = 0; i < n; i += 2) {
        if (i + 2 > n) i = n - 2;  // the last pair may overlap the one before it
        const uint8_t *p = source.base + cells[i].offset, *q = source.base + cells[i + 1].offset;
        const uint64_t p_length = static_cast<uint32_t>(cells[i].length);
        const uint64_t q_length = static_cast<uint32_t>(cells[i + 1].length);
        const uint64_t p_minus = *p == '-', q_minus = *q == '-';
        // An amount without any character after the dollar is as invalid as one with 17 of them.
        const uint64_t p_rest = p_length - p_minus - 1, q_rest = q_length - q_minus - 1;
        const uint64_t p_size = p_rest < 17 ? p_rest : 17, q_size = q_rest < 17 ? q_rest : 17;
        mismatch |= static_cast<uint32_t>((p[p_minus] ^ '$') | (q[q_minus] ^ '$'));
        __m256i x = _mm256_xor_si256(load_two(p + p_length - 16, q + q_length - 16), expected);
        x = _mm256_and_si256(x, load_two(MASKS.last + 16 + (p_size < 16 ? p_size : 16),
                                         MASKS.last + 16 + (q_size < 16 ? q_size : 16)));
        wrong_characters = _mm256_or_si256(wrong_characters, _mm256_subs_epu8(x, largest));
        x = join_digits(_mm256_shuffle_epi8(x, compact));
        bad = _mm256_or_si256(bad, _mm256_sub_epi64(x, two_numbers(LEAST_CENTS.of + p_size + SIGNED * p_minus,
                                                                   LEAST_CENTS.of + q_size + SIGNED * q_minus)));
        out[i] = with_sign(low_number(x), p_minus);
        out[i + 1] = with_sign(high_number(x), q_minus);
    }
    return !mismatch && !any_negative(bad) && is_zero(wrong_characters);
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
