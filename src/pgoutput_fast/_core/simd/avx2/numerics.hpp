// Numerics that become text, for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstdint>
#include <cstring>
#include "columns/column.hpp"
#include "protocol/wire.hpp"
#include "simd/avx2/registers.hpp"

namespace pgo {

// Maximum text length of a binary numeric in the vector loop: a minus, a point and 32 digits.
constexpr size_t LONGEST_USUAL_NUMERIC = 34;

}  // namespace pgo

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// Copies numerics that stay text, and checks that they have the form that numeric_out prints. They may have at most 31
// characters. `out` must have space for the cells' bytes and SLACK.
inline bool numerics(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                     const Column& column) noexcept {
    if (column.statistics.longest > 31 || column.statistics.shortest == 0) return false;
    const __m256i zero = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9), point = _mm256_set1_epi8('.');
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint32_t length = static_cast<uint32_t>(cells[i].length) & present;
        const uint8_t* p = source.base + (cells[i].offset & present);
        const __m256i x = load_wide(p), d = _mm256_sub_epi8(x, zero);
        store_wide(out, x);
        const uint32_t minus = *p == '-', in_range = (uint32_t{1} << length) - 1;
        const uint32_t digits = mask_of(_mm256_cmpeq_epi8(_mm256_min_epu8(d, nine), d)) & in_range;
        const uint32_t zeros = mask_of(_mm256_cmpeq_epi8(x, zero)) & in_range;
        const uint32_t points = mask_of(_mm256_cmpeq_epi8(x, point)) & in_range;
        // Wrong: other characters, a second point, no digit at the beginning or at the end.
        uint32_t wrong = (digits | points | minus) ^ in_range;
        wrong |= _blsr_u32(points);
        wrong |= (~(digits >> minus) & 1) | (~(digits >> ((length - 1) & 31)) & 1);
        // Wrong: a leading zero before another digit, a zero with a sign.
        wrong |= zeros >> minus & digits >> minus >> 1 & 1;
        wrong |= minus & static_cast<uint32_t>(digits == zeros);
        bad |= wrong & present;
        out += length;
        at += static_cast<int32_t>(length);
        offsets[i + 1] = at;
    }
    return !bad;
}

// The decimal digits of eight numbers below 10000, four per number.
inline __m256i decimal_digits(__m128i numbers) {
    const __m128i hundreds = _mm_srli_epi16(_mm_mulhi_epu16(numbers, _mm_set1_epi16(5243)), 3);
    const __m128i rest = _mm_sub_epi16(numbers, _mm_mullo_epi16(hundreds, _mm_set1_epi16(100)));
    const __m256i pairs = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(hundreds, rest)),
                                                  _mm_unpackhi_epi16(hundreds, rest), 1);
    const __m256i tens = _mm256_mulhi_epu16(pairs, _mm256_set1_epi16(6554));
    const __m256i ones = _mm256_sub_epi16(pairs, _mm256_mullo_epi16(tens, _mm256_set1_epi16(10)));
    return _mm256_or_si256(tens, _mm256_slli_epi16(ones, 8));
}

// Prints binary numerics as numeric_out does. They may have at most seven digits in base 10000, including the zeros
// between these digits and the point, and at most 28 digits after the point. `out` must have space for
// LONGEST_USUAL_NUMERIC n bytes and SLACK.
inline bool binary_numerics(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                            const Column&) noexcept {
    // Computes the digits of a batch of cells before copying them. A copy begins at any of the digits, and reading them
    // back at once would stall the processor.
    constexpr size_t BATCH = 16;
    struct Place {
        uint8_t first, whole, point, scale, minus;
    };
    alignas(32) uint8_t text[32 * BATCH + 32];
    Place places[BATCH];
    std::memset(text + 32 * BATCH, 0, 32);
    const __m128i swapped = _mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    __m128i wrong_digits = _mm_setzero_si128();
    uint64_t mismatch = 0, bad = 0;  // errors: any bit of `mismatch`, the highest bit of `bad`
    int32_t at = offsets[0];
    for (size_t begin = 0; begin < n; begin += BATCH) {
        const size_t count_of_cells = n - begin < BATCH ? n - begin : BATCH;
        for (size_t i = 0; i < count_of_cells; ++i) {
            const Cell& cell = cells[begin + i];
            const uint32_t present = presence(cell.length);
            const uint8_t* p = source.base + (cell.offset & present);
            const uint64_t header = load64(p) & static_cast<uint64_t>(static_cast<int32_t>(present));
            const uint64_t count = header >> 48, scale = header & 0xffff;
            mismatch |= (static_cast<uint32_t>(cell.length) ^ (8 + 2 * count)) & present;
            mismatch |= header & 0xbfff0000;
            // Group 0 is always zero: it becomes the 0 before the point. `lead` is the number of further zeros before
            // the first digit. The point comes after `groups` of them all.
            const int64_t above = static_cast<int16_t>(header >> 32) + int64_t{1};
            const uint64_t lead = static_cast<uint64_t>(above < 0 ? -above : 0);
            const uint64_t groups = static_cast<uint64_t>(above < 0 ? 1 : 1 + above), point = 4 * groups;
            bad |= (7 - lead - count) | (7 - lead) | (32 - point - scale) | (8 - groups);
            const uint32_t skipped = 2 + 2 * (lead & 7), taken = skipped + 2 * (count & 7);
            const __m128i kept = _mm_andnot_si128(load(MASKS.first + 64 - skipped), load(MASKS.first + 64 - taken));
            const __m128i numbers = _mm_shuffle_epi8(_mm_and_si128(load(p + 8 - skipped), kept), swapped);
            wrong_digits = _mm_or_si128(wrong_digits, _mm_subs_epu16(numbers, _mm_set1_epi16(9999)));
            const __m256i digits = decimal_digits(numbers);
            store_wide(text + 32 * i, _mm256_or_si256(digits, _mm256_set1_epi8('0')));
            const uint32_t zeros = mask_of(_mm256_cmpeq_epi8(digits, _mm256_setzero_si256()));
            const uint32_t shown = _bzhi_u32(~zeros, static_cast<uint32_t>(point + scale));
            const uint32_t first = _tzcnt_u32(shown | uint32_t{1} << ((point - 1) & 31));
            places[i] = {static_cast<uint8_t>(first), static_cast<uint8_t>((point - first) & present),
                         static_cast<uint8_t>(point), static_cast<uint8_t>(scale),
                         static_cast<uint8_t>((header >> 30 & 1) & (shown != 0))};
        }
        if ((bad >> 63) | mismatch) return false;
        for (size_t i = 0; i < count_of_cells; ++i) {
            const Place& place = places[i];
            uint8_t* const start = out;
            *out = '-';
            out += place.minus;
            store_wide(out, load_wide(text + 32 * i + place.first));
            out += place.whole;
            *out = '.';
            out += place.scale != 0;
            store_wide(out, load_wide(text + 32 * i + place.point));
            out += place.scale;
            at += static_cast<int32_t>(out - start);
            offsets[begin + i + 1] = at;
        }
    }
    return is_zero(wrong_digits);
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
