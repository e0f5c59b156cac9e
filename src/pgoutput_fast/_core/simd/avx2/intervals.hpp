// Intervals as text, for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstdint>
#include <limits>
#include "columns/column.hpp"
#include "protocol/wire.hpp"
#include "simd/avx2/integers.hpp"
#include "simd/avx2/times.hpp"
#include "types/interval.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// Loads eight bytes at each offset from `base`.
inline __m128i load_pieces(const uint8_t* base, uint64_t a, uint64_t b) {
    const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(base + a));
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(low), reinterpret_cast<const __m64*>(base + b)));
}
inline __m256i load_pieces(const uint8_t* base, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_pieces(base, a, b)), load_pieces(base, c, d), 1);
}

constexpr uint64_t letters_of(const char* text) {
    uint64_t letters = 0;
    for (int k = 0; text[k]; ++k) letters |= static_cast<uint64_t>(text[k]) << 8 * k;
    return letters;
}

// Reads an interval like "1 year 2 mons 3 days 04:05:06.7", with at most seven digits in a number and six in the hours.
// Returns false for any other text. Letters locate the units: only "year" has an e, only "mon" an o, only "day" a d.
// They must be among the first 32 characters of the cell. With SIGNED, parts have signs of their own, as in "3 mons -2
// days +04:05:06". Without it, only a time without other parts may have a sign, which is faster for usual intervals.
template <bool SIGNED>
inline bool read_usual_interval(const uint8_t* p, uint64_t length, Interval* out) noexcept {
    const __m256i zeros = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9), all = _mm256_set1_epi8(-1);
    const __m256i none = _mm256_setzero_si256();
    // Four numbers share a register: years, months, days and hours. Per number of digits: the smallest valid number. No
    // number reaches `never`. Hours have at least two digits, and begin with a zero only if they have exactly two.
    const int never = INT32_MAX;
    const __m256i least_of_unit = _mm256_setr_epi32(never, 1, 10, 100, 1000, 10000, 100000, 1000000);
    const __m256i least_hours = _mm256_setr_epi32(never, never, 0, 100, 1000, 10000, 100000, never);
    const __m256i most = _mm256_setr_epi32(never, 0, 11, 0, never, 0, never, 0);
    const __m256i letters = _mm256_setr_epi64x(letters_of(" years"), letters_of(" mons"), letters_of(" days"), 0);
    const __m128i expected = _mm_setr_epi8(':', '0', '0', ':', '0', '0', '.', '0', '0', '0', '0', '0', '0', 0, 0, 0);
    const __m128i largest = _mm_setr_epi8(0, 5, 9, 0, 5, 9, 0, 9, 9, 9, 9, 9, 9, 0, 0, 0);
    const __m128i compact = _mm_setr_epi8(1, 2, 4, 5, 7, 8, 9, 10, 11, 12, -1, -1, -1, -1, -1, -1);
    const __m128i factors = _mm_setr_epi16(60, 1, 10000, 100, 1, 0, 0, 0);
    constexpr uint64_t valid_clocks = 1 << 0 | 1 << 6 | 0x3f << 8;
    // All zeros for the characters before a cell, all ones for those of the cell.
    const uint8_t* const inside = reinterpret_cast<const uint8_t*>(&MASKS) + 32 - 8;
    const __m256i x = _mm256_and_si256(load_wide(p), load_wide(MASKS.first + 64 - length));
    const auto which = [&](char c) {
        return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_set1_epi8(c))));
    };
    const uint32_t e = which('e'), o = which('o'), d = which('d'), colons = which(':');
    const uint64_t year_end = _tzcnt_u32(e) - uint64_t{2}, month_end = _tzcnt_u32(o) - uint64_t{2};
    const uint64_t day_end = _tzcnt_u32(d) - uint64_t{1}, colon = _tzcnt_u32(colons);
    // `clock` is the number of characters from the first colon on. A colon that is not among the first 32 characters
    // must be the next one.
    const uint64_t hour_end = colon < length ? colon : length, clock = length - hour_end;
    const __m256i ends = _mm256_cvtepi32_epi64(
        _mm_setr_epi32(static_cast<int>(year_end), static_cast<int>(month_end), static_cast<int>(day_end),
                       static_cast<int>(hour_end)));
    const __m256i clocks = _mm256_set1_epi64x(static_cast<int64_t>(clock));
    // A unit whose letter is missing appears to end after the 32 characters.
    const __m256i absent =
        _mm256_cmpeq_epi64(_mm256_blend_epi32(ends, clocks, 0xc0), _mm256_setr_epi64x(30, 30, 31, 0));
    const uint32_t absents = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(absent)));
    // Each lane has the eight characters before the end of a number. All before its digits become zero.
    const __m256i before = _mm256_and_si256(load_pieces(p - 8, year_end, month_end, day_end, hour_end),
                                            load_pieces(inside, year_end, month_end, day_end, hour_end));
    const __m256i numbers = _mm256_xor_si256(before, zeros);
    __m256i others = _mm256_andnot_si256(_mm256_cmpeq_epi8(_mm256_min_epu8(numbers, nine), numbers), all);
    others = _mm256_or_si256(others, _mm256_set1_epi64x(0xff));
    others = _mm256_or_si256(others, _mm256_srli_epi64(others, 8));
    others = _mm256_or_si256(others, _mm256_srli_epi64(others, 16));
    others = _mm256_or_si256(others, _mm256_srli_epi64(others, 32));
    const __m256i counts = _mm256_sad_epu8(_mm256_andnot_si256(others, _mm256_set1_epi8(1)), none);
    __m256i values = _mm256_maddubs_epi16(_mm256_andnot_si256(others, numbers), _mm256_set1_epi16(0x010a));
    values = _mm256_madd_epi16(values, _mm256_set1_epi32(0x00010064));
    values = _mm256_add_epi64(_mm256_mul_epu32(values, _mm256_set1_epi64x(10000)), _mm256_srli_epi64(values, 32));
    // The signs right before the digits. A part without a minus has a plus if the previous part has a minus.
    const uint64_t minus = *p == '-';
    __m256i negative = none, signs = none;
    uint32_t negatives = static_cast<uint32_t>(minus) << 3, mismatch = 0;
    uint64_t outside = minus;  // characters that belong to no part
    if (SIGNED) {
        const __m256i last_other = _mm256_andnot_si256(_mm256_srli_epi64(others, 8), others);
        const auto has = [&](char c) {
            const __m256i found = _mm256_and_si256(_mm256_cmpeq_epi8(before, _mm256_set1_epi8(c)), last_other);
            return _mm256_andnot_si256(absent, _mm256_xor_si256(_mm256_cmpeq_epi64(found, none), all));
        };
        const __m256i positive = has('+');
        negative = has('-');
        signs = _mm256_or_si256(negative, positive);
        negatives = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(negative)));
        const uint32_t positives = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(positive)));
        uint32_t behind = negatives << 1;
        behind |= (behind & absents) << 1;
        behind |= (behind & absents) << 1;
        mismatch = positives ^ (behind & ~absents & ~negatives & 15);
        mismatch |= (negatives ^ negatives >> 1) & 1 & ~(absents | absents >> 1);  // years and months have one sign
        outside = 0;
    }
    // The length of every part with the blank after it. Only 1 has no "s" after its unit.
    const __m256i single =
        _mm256_andnot_si256(negative, _mm256_cmpeq_epi64(values, _mm256_setr_epi64x(1, 1, 1, -1)));
    __m256i lengths = _mm256_add_epi64(_mm256_add_epi64(counts, single), _mm256_setr_epi64x(7, 6, 6, 1));
    if (SIGNED) lengths = _mm256_sub_epi64(lengths, signs);
    lengths = _mm256_add_epi64(lengths, _mm256_blend_epi32(none, clocks, 0xc0));
    lengths = _mm256_andnot_si256(absent, lengths);
    __m256i sums = _mm256_add_epi64(lengths, _mm256_slli_si256(lengths, 8));
    sums = _mm256_add_epi64(sums, _mm256_blend_epi32(none, _mm256_permute4x64_epi64(sums, 0x55), 0xf0));
    // Wrong: a part that does not begin at the end of the previous one, other letters, too few or too many digits.
    __m256i starts = _mm256_sub_epi64(sums, lengths);
    starts = SIGNED ? _mm256_sub_epi64(starts, signs)
                    : _mm256_add_epi64(starts, _mm256_set1_epi64x(static_cast<int64_t>(minus)));
    __m256i wrong = _mm256_xor_si256(_mm256_sub_epi64(ends, counts), starts);
    const __m256i words = load_pieces(p, year_end, month_end, day_end, day_end);
    const __m256i shifts = _mm256_sub_epi64(_mm256_setr_epi64x(16, 24, 24, 64), _mm256_slli_epi64(single, 3));
    wrong = _mm256_or_si256(wrong, _mm256_sllv_epi64(_mm256_xor_si256(words, letters), shifts));
    const __m256i least = _mm256_blend_epi32(_mm256_permutevar8x32_epi32(least_of_unit, counts),
                                             _mm256_permutevar8x32_epi32(least_hours, counts), 0xc0);
    const __m256i beyond = _mm256_or_si256(_mm256_cmpgt_epi32(least, values), _mm256_cmpgt_epi32(values, most));
    wrong = _mm256_andnot_si256(absent, _mm256_or_si256(wrong, _mm256_slli_epi64(beyond, 32)));
    // The text after the hours.
    const __m128i rest =
        _mm_and_si128(_mm_xor_si128(load(p + hour_end), expected), load(MASKS.first + 64 - clock));
    wrong = _mm256_or_si256(wrong, _mm256_zextsi128_si256(_mm_subs_epu8(rest, largest)));
    const __m128i pairs = _mm_maddubs_epi16(_mm_shuffle_epi8(rest, compact), _mm_set1_epi16(0x010a));
    const __m128i fields = _mm_madd_epi16(pairs, factors);
    const uint64_t seconds = static_cast<uint64_t>(_mm_cvtsi128_si64(fields));
    values = _mm256_andnot_si256(absent, values);
    const uint64_t hours = static_cast<uint64_t>(_mm256_extract_epi64(values, 3));
    const uint64_t micros = hours * (3600 * MICROS_PER_SECOND) + (seconds & UINT32_MAX) * MICROS_PER_SECOND +
                            (seconds >> 32) + static_cast<uint32_t>(_mm_extract_epi32(fields, 2));
    if (SIGNED) values = _mm256_sub_epi64(_mm256_xor_si256(values, negative), negative);
    // A zero time is usual only alone and without a sign. A fraction does not end with a zero. Every unit has a blank
    // before it, and one separates two parts.
    const uint32_t blanks = static_cast<uint32_t>(_mm_popcnt_u32(which(' ')));
    const uint32_t units = (absents & 7) != 7, zero = micros == 0;
    mismatch |= blanks ^ (6 - static_cast<uint32_t>(_mm_popcnt_u32(absents | (absents & 7) << 4)));
    if (!SIGNED) mismatch |= static_cast<uint32_t>(minus) & units;
    mismatch |= (zero & (negatives >> 3 | units) & ~(absents >> 3)) | (~(valid_clocks >> clock) & 1);
    mismatch |= (clock > 6) & (p[length - 1] == '0');
    const uint64_t unread = (static_cast<uint64_t>(_mm256_extract_epi64(sums, 3)) + outside) ^ (length + 1);
    out->months = static_cast<int32_t>(12 * low_number(values) + _mm256_extract_epi64(values, 1));
    out->days = _mm_cvtsi128_si32(_mm256_extracti128_si256(values, 1));
    const uint64_t sign = 0 - static_cast<uint64_t>(negatives >> 3);
    out->nanos = static_cast<int64_t>(1000 * ((micros ^ sign) - sign));
    return !(mismatch | unread) && is_zero(wrong);
}

// Not inlined, so that the loop keeps its registers.
__attribute__((noinline)) inline bool read_other_interval(const uint8_t* p, int32_t length, Interval* out) noexcept {
    return read_usual_interval<true>(p, static_cast<uint32_t>(length), out) ||
           parse_interval(p, static_cast<uint32_t>(length), out) == OK;
}

// Reads intervals. Unusual ones are parsed one by one instead of refusing the chunk.
inline bool intervals(Source source, const Cell* cells, size_t n, Interval* out, const Column& column) noexcept {
    if (column.statistics.longest > 62) return false;
    for (size_t i = 0; i < n; ++i) {
        const uint8_t* const p = source.base + cells[i].offset;
        const bool usual = read_usual_interval<false>(p, static_cast<uint32_t>(cells[i].length), out + i);
        if (__builtin_expect(usual, 1)) continue;
        if (!read_other_interval(p, cells[i].length, out + i)) return false;
    }
    return true;
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
