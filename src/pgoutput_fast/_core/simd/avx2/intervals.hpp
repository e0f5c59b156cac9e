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

// Eight bytes from each place behind `base`.
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

// A call, so that the loop keeps its registers.
__attribute__((noinline)) inline bool parse_other(const uint8_t* p, int32_t length, Interval* out) noexcept {
    return parse_interval(p, static_cast<uint32_t>(length), out) == OK;
}

// Reads intervals like "1 year 2 mons 3 days 04:05:06.7" and "-04:05:06", with at most seven digits in a number and six
// in the hours. Letters find the units: only "year" has an e, only "mon" an o, only "day" a d. They must be among the
// first 32 characters. It parses all others one by one, and does not refuse the chunk because of them.
inline bool intervals(Source source, const Cell* cells, size_t n, Interval* out, const Column& column) noexcept {
    if (column.statistics.longest > 62) return false;
    const __m256i zeros = _mm256_set1_epi8('0'), nine = _mm256_set1_epi8(9), all = _mm256_set1_epi8(-1);
    const __m256i none = _mm256_setzero_si256();
    // Four numbers share a register: years, months, days and hours. For each count of digits, the least valid number; no
    // number reaches `never`. Hours have two digits at least, and begin with a zero only if they have just two.
    const int never = INT32_MAX;
    const __m256i least_of_unit = _mm256_setr_epi32(never, 1, 10, 100, 1000, 10000, 100000, 1000000);
    const __m256i least_hours = _mm256_setr_epi32(never, never, 0, 100, 1000, 10000, 100000, never);
    const __m256i most = _mm256_setr_epi32(never, 0, 11, 0, never, 0, never, 0);
    const __m256i letters = _mm256_setr_epi64x(letters_of(" years"), letters_of(" mons"), letters_of(" days"), 0);
    const __m128i expected = _mm_setr_epi8(':', '0', '0', ':', '0', '0', '.', '0', '0', '0', '0', '0', '0', 0, 0, 0);
    const __m128i largest = _mm_setr_epi8(0, 5, 9, 0, 5, 9, 0, 9, 9, 9, 9, 9, 9, 0, 0, 0);
    const __m128i compact = _mm_setr_epi8(1, 2, 4, 5, 7, 8, 9, 10, 11, 12, -1, -1, -1, -1, -1, -1);
    const __m128i factors = _mm_setr_epi16(60, 1, 10000, 100, 1, 0, 0, 0);
    constexpr uint32_t valid_clocks = 1 << 0 | 1 << 6 | 0x3f << 8;
    // All zeros for the characters before a cell, all ones for those of the cell.
    const uint8_t* const inside = reinterpret_cast<const uint8_t*>(&MASKS) + 32 - 8;
    for (size_t i = 0; i < n; ++i) {
        const uint8_t* const p = source.base + cells[i].offset;
        const uint64_t length = static_cast<uint32_t>(cells[i].length);
        const __m256i x = load_wide(p);
        const uint32_t in_range = _bzhi_u32(UINT32_MAX, static_cast<uint32_t>(length));
        const auto which = [&](char c) {
            return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_set1_epi8(c)))) & in_range;
        };
        const uint32_t e = which('e'), o = which('o'), d = which('d');
        // The first colon is one of the last sixteen characters. `clock` counts the characters from there on.
        const __m128i tail = _mm_and_si128(load(p + length - 16), last_lanes(length < 16 ? length : 16));
        const uint32_t colons =
            static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(tail, _mm_set1_epi8(':'))));
        const uint32_t clock = 16 - _tzcnt_u32(colons | 1 << 16);
        const uint64_t year_end = _tzcnt_u32(e) - uint64_t{2}, month_end = _tzcnt_u32(o) - uint64_t{2};
        const uint64_t day_end = _tzcnt_u32(d) - uint64_t{1}, hour_end = length - clock;
        const __m256i ends = _mm256_cvtepi32_epi64(
            _mm_setr_epi32(static_cast<int>(year_end), static_cast<int>(month_end), static_cast<int>(day_end),
                           static_cast<int>(hour_end)));
        const __m256i clocks = _mm256_set1_epi64x(static_cast<int64_t>(clock));
        // Without its letter, a unit seems to end after the 32 characters.
        const __m256i absent =
            _mm256_cmpeq_epi64(_mm256_blend_epi32(ends, clocks, 0xc0), _mm256_setr_epi64x(30, 30, 31, 0));
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
        // How long each part is with the blank after it. Only 1 has no "s" after its unit.
        const __m256i single = _mm256_cmpeq_epi64(values, _mm256_setr_epi64x(1, 1, 1, -1));
        __m256i lengths = _mm256_add_epi64(_mm256_add_epi64(counts, single), _mm256_setr_epi64x(7, 6, 6, 1));
        lengths = _mm256_add_epi64(lengths, _mm256_blend_epi32(none, clocks, 0xc0));
        lengths = _mm256_andnot_si256(absent, lengths);
        __m256i sums = _mm256_add_epi64(lengths, _mm256_slli_si256(lengths, 8));
        sums = _mm256_add_epi64(sums, _mm256_blend_epi32(none, _mm256_permute4x64_epi64(sums, 0x55), 0xf0));
        // Wrong: a part that does not begin where the one before it ends, other letters, too few or too many.
        const int64_t minus = *p == '-';
        const __m256i starts = _mm256_add_epi64(_mm256_sub_epi64(sums, lengths), _mm256_set1_epi64x(minus));
        __m256i wrong = _mm256_xor_si256(_mm256_sub_epi64(ends, counts), starts);
        const __m256i words = load_pieces(p, year_end, month_end, day_end, day_end);
        const __m256i shifts = _mm256_sub_epi64(_mm256_setr_epi64x(16, 24, 24, 64), _mm256_slli_epi64(single, 3));
        wrong = _mm256_or_si256(wrong, _mm256_sllv_epi64(_mm256_xor_si256(words, letters), shifts));
        const __m256i least = _mm256_blend_epi32(_mm256_permutevar8x32_epi32(least_of_unit, counts),
                                                 _mm256_permutevar8x32_epi32(least_hours, counts), 0xc0);
        const __m256i beyond = _mm256_or_si256(_mm256_cmpgt_epi32(least, values), _mm256_cmpgt_epi32(values, most));
        wrong = _mm256_andnot_si256(absent, _mm256_or_si256(wrong, _mm256_slli_epi64(beyond, 32)));
        // What comes after the hours.
        const __m128i rest =
            _mm_and_si128(_mm_xor_si128(load(p + hour_end), expected), load(MASKS.first + 64 - clock));
        const __m128i pairs = _mm_maddubs_epi16(_mm_shuffle_epi8(rest, compact), _mm_set1_epi16(0x010a));
        const __m128i fields = _mm_madd_epi16(pairs, factors);
        const uint64_t seconds = static_cast<uint64_t>(_mm_cvtsi128_si64(fields));
        values = _mm256_andnot_si256(absent, values);
        const __m128i days_hours = _mm256_extracti128_si256(values, 1);
        const uint64_t hours = static_cast<uint64_t>(_mm_extract_epi64(days_hours, 1));
        const uint64_t micros = hours * (3600 * MICROS_PER_SECOND) + (seconds & UINT32_MAX) * MICROS_PER_SECOND +
                                (seconds >> 32) + static_cast<uint32_t>(_mm_extract_epi32(fields, 2));
        // A zero time is usual only alone and without a sign, a minus only before a time that is alone. A fraction does
        // not end with a zero. Each unit has a blank before it, and there is one between two parts.
        const uint32_t absents = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(absent)));
        const uint32_t blanks = static_cast<uint32_t>(_mm_popcnt_u32(which(' ')));
        const uint32_t units = (absents & 7) != 7, signs = static_cast<uint32_t>(minus), zero = micros == 0;
        uint64_t mismatch = blanks ^ (6 - static_cast<uint32_t>(_mm_popcnt_u32(absents | (absents & 7) << 4)));
        mismatch |= (signs & units) | (zero & (signs | units) & ~(absents >> 3)) | (~(valid_clocks >> clock) & 1);
        mismatch |= (clock > 6) & (p[length - 1] == '0');
        mismatch |= (static_cast<uint64_t>(_mm256_extract_epi64(sums, 3)) + static_cast<uint64_t>(minus)) ^ (length + 1);
        const int64_t years = low_number(values), months = _mm256_extract_epi64(values, 1);
        out[i].months = static_cast<int32_t>(12 * years + months);
        out[i].days = _mm_cvtsi128_si32(days_hours);
        out[i].nanos = static_cast<int64_t>(1000 * ((micros ^ (0 - uint64_t{signs})) + signs));
        wrong = _mm256_or_si256(wrong, _mm256_zextsi128_si256(_mm_subs_epu8(rest, largest)));
        if (__builtin_expect(!mismatch && is_zero(wrong), 1)) continue;
        if (!parse_other(p, cells[i].length, out + i)) return false;
    }
    return true;
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
