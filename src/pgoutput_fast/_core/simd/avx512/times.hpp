// Dates and timestamps for processors with AVX-512; see simd/avx512/integers.hpp.
#pragma once
#include "simd/avx2/intervals.hpp"
#include "simd/avx512/integers.hpp"

#ifdef PGO_AVX2
#include "simd/avx512/on.hpp"

namespace pgo::avx512 {

// Per month: the number of its days and, in the high half, of the days before it in a year that begins in March.
struct Months {
    uint32_t of[16];
    constexpr Months() : of() {
        const uint32_t days[12] = {31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 29};
        uint32_t before = 0;
        for (int k = 0; k < 12; ++k) {
            of[(k + 2) % 12 + 1] = before << 16 | days[k];
            before += days[k];
        }
    }
};
inline constexpr Months MONTHS{};

// Returns days since 1970 for sixteen dates. `bad` receives the lanes whose date does not exist. `month_day` is
// month * 64 + day.
inline __m512i days_of(__m512i year, __m512i month_day, __mmask16* bad) {
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i month = _mm512_srli_epi32(month_day, 6), day = _mm512_and_si512(month_day, _mm512_set1_epi32(63));
    const __m512i entry = _mm512_permutexvar_epi32(month, load_full(MONTHS.of));
    const __m512i length = _mm512_and_si512(entry, _mm512_set1_epi32(0xffff)), before = _mm512_srli_epi32(entry, 16);
    *bad |= _mm512_cmpge_epu32_mask(_mm512_sub_epi32(day, one), length);
    *bad |= _mm512_cmpgt_epu32_mask(month, _mm512_set1_epi32(12)) | _mm512_testn_epi32_mask(year, year);
    const __mmask16 winter = _mm512_cmplt_epu32_mask(month, _mm512_set1_epi32(3));
    const __m512i y = _mm512_mask_sub_epi32(year, winter, year, one);
    // Both products, for y / 100 and y * 1461, have factors that fit into 16 bits.
    const __m512i century = _mm512_srli_epi32(_mm512_madd_epi16(y, _mm512_set1_epi32(5243)), 19);
    const __m512i whole = _mm512_srli_epi32(_mm512_madd_epi16(y, _mm512_set1_epi32(1461)), 2);
    const __mmask16 leap_day = _mm512_cmpeq_epi32_mask(month_day, _mm512_set1_epi32(avx2::FEBRUARY_29));
    if (__builtin_expect(leap_day != 0, 0)) {
        const __m512i rest = _mm512_and_si512(year, _mm512_set1_epi32(3));
        const __m512i hundreds = _mm512_srli_epi32(_mm512_madd_epi16(year, _mm512_set1_epi32(5243)), 19);
        const __mmask16 full = _mm512_cmpeq_epi32_mask(_mm512_madd_epi16(hundreds, _mm512_set1_epi32(100)), year);
        const __mmask16 common = _mm512_test_epi32_mask(rest, rest) |
                                 _mm512_mask_test_epi32_mask(full, hundreds, _mm512_set1_epi32(3));
        *bad |= leap_day & common;
    }
    const __m512i number = _mm512_add_epi32(_mm512_add_epi32(before, day), _mm512_srli_epi32(century, 2));
    return _mm512_sub_epi32(_mm512_add_epi32(whole, number), _mm512_add_epi32(century, _mm512_set1_epi32(719469)));
}

constexpr size_t DATES = 16;  // dates per step of the loop

inline bool usual_dates(Source source, const Cell* cells, size_t n, int32_t* out) noexcept {
    const __m512i expected = _mm512_broadcast_i32x4(
        _mm_setr_epi8('0', '0', '0', '0', '-', '0', '0', '-', '0', '0', 0, 0, 0, 0, 0, 0));
    const __m512i largest = _mm512_broadcast_i32x4(_mm_setr_epi8(9, 9, 9, 9, 0, 1, 9, 0, 3, 9, -1, -1, -1, -1, -1, -1));
    const __m512i compact =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 5, 6, 8, 9, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m512i factors =
        _mm512_broadcast_i32x4(_mm_setr_epi32(avx2::YEAR_FACTORS, avx2::MONTH_FACTORS, 0, 0));
    __mmask64 wrong_characters = 0;
    __mmask16 bad = 0;
    for (size_t i = 0; i < n; i += DATES) {
        if (i + DATES > n) i = n - DATES;  // the last group may overlap the one before it
        const uint8_t* base = source.base;
        __m512i fields[4];
        for (int k = 0; k < 4; ++k) {
            const Cell* at = cells + i + k;
            const __m512i x = _mm512_sub_epi8(
                load_four(base + at[0].offset, base + at[4].offset, base + at[8].offset, base + at[12].offset),
                expected);
            wrong_characters |= _mm512_cmpgt_epu8_mask(x, largest);
            const __m512i pairs = _mm512_maddubs_epi16(_mm512_shuffle_epi8(x, compact), _mm512_set1_epi16(0x010a));
            fields[k] = _mm512_madd_epi16(pairs, factors);
        }
        const __m512 a = _mm512_castsi512_ps(_mm512_unpacklo_epi64(fields[0], fields[1]));
        const __m512 b = _mm512_castsi512_ps(_mm512_unpacklo_epi64(fields[2], fields[3]));
        const __m512i year = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
        const __m512i month_day = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd));
        store_full(out + i, days_of(year, month_day, &bad));
    }
    return !wrong_characters && !bad;
}

inline bool dates(Source source, const Cell* cells, size_t n, int32_t* out, const Column& column) noexcept {
    const bool tens = column.statistics.longest == 10 && column.statistics.shortest == 10;
    if (tens && n >= DATES && usual_dates(source, cells, n, out)) return true;
    return avx2::dates(source, cells, n, out, column);
}

struct PairLengths {
    Bytes of[4];
    constexpr PairLengths() : of() {
        for (int k = 0; k < 4; ++k) of[k] = spread(2 * k, 1, 2, LENGTH_BYTE);
    }
};
inline constexpr PairLengths PAIR_LENGTHS{};

// Reads the same texts as avx2::timestamps, two cells per register. It checks the zone without moving it.
template <bool zoned>
bool usual_timestamps(Source source, const Cell* cells, size_t n, int64_t* out) noexcept {
    constexpr int zone = zoned ? 3 : 0;
    const __m512i places = _mm512_broadcast_i64x4(
        _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                         16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
    const __m512i expected = _mm512_broadcast_i64x4(
        _mm256_setr_epi8('0', '0', '0', '0', '-', '0', '0', '-', '0', '0', ' ', '0', '0', ':', '0', '0',
                         ':', '0', '0', '.', '0', '0', '0', '0', '0', '0', 0, 0, 0, 0, 0, 0));
    const __m512i largest = _mm512_broadcast_i64x4(
        _mm256_setr_epi8(9, 9, 9, 9, 0, 1, 9, 0, 3, 9, 0, 2, 9, 0, 5, 9,
                         0, 5, 9, 0, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0));
    const __m512i compact = _mm512_broadcast_i64x4(
        _mm256_setr_epi8(0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, -1, -1, -1, -1,
                         1, 2, 4, 5, 6, 7, 8, 9, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m512i factors = _mm512_broadcast_i64x4(
        _mm256_setr_epi32(avx2::YEAR_FACTORS, avx2::MONTH_FACTORS, avx2::MINUTE_FACTORS, 0,
                          avx2::YEAR_FACTORS, avx2::YEAR_FACTORS, 0, 0));
    const __m512i utc = _mm512_broadcast_i32x4(_mm_setr_epi8('+', '0', '0', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    __mmask64 wrong_characters = 0;
    __mmask8 bad = 0;
    for (size_t i = 0; i < n; i += CELLS) {
        if (i + CELLS > n) i = n - CELLS;  // the last group may overlap the one before it
        const __m512i c = load_full(cells + i);
        __m512i fields[4];
        for (int k = 0; k < 4; ++k) {
            const Cell* at = cells + i + 2 * k;
            const __m512i x = load_two(source.base + at[0].offset, source.base + at[1].offset);
            const __m512i length = _mm512_permutexvar_epi8(load_full(PAIR_LENGTHS.of[k].of), c);
            // The position of each lane, counted from the start of the zone.
            const __m512i tail = _mm512_sub_epi8(places, _mm512_sub_epi8(length, _mm512_set1_epi8(zone)));
            const __m512i y = _mm512_maskz_sub_epi8(_mm512_movepi8_mask(tail), x, expected);
            wrong_characters |= _mm512_cmpgt_epu8_mask(y, largest);
            if (zoned) {
                const __mmask64 in_zone = _mm512_cmplt_epu8_mask(tail, _mm512_set1_epi8(zone));
                wrong_characters |= _mm512_mask_cmpneq_epi8_mask(in_zone, x, _mm512_shuffle_epi8(utc, tail));
            }
            const __m512i pairs = _mm512_maddubs_epi16(_mm512_shuffle_epi8(y, compact), _mm512_set1_epi16(0x010a));
            fields[k] = _mm512_madd_epi16(pairs, factors);
        }
        // Per cell: the year and month * 64 + day, the minutes, and seconds * 100 and the rest of the fraction.
        const __m512i dates_seconds = _mm512_unpacklo_epi64(fields[0], fields[1]);
        const __m512i dates_seconds_2 = _mm512_unpacklo_epi64(fields[2], fields[3]);
        const __m512i first = _mm512_setr_epi64(0, 4, 1, 5, 8, 12, 9, 13);
        const __m512i third = _mm512_setr_epi64(2, 6, 3, 7, 10, 14, 11, 15);
        const __m512i date = _mm512_permutex2var_epi64(dates_seconds, first, dates_seconds_2);
        const __m512i seconds = _mm512_permutex2var_epi64(dates_seconds, third, dates_seconds_2);
        const __m512i minutes = _mm512_permutex2var_epi64(_mm512_unpackhi_epi64(fields[0], fields[1]), first,
                                                          _mm512_unpackhi_epi64(fields[2], fields[3]));
        bad |= _mm512_cmpgt_epu64_mask(minutes, _mm512_set1_epi64(1439));
        bad |= _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(c, 32), _mm512_set1_epi64(20 + zone));  // a point, no digits
        // `days_of` works on lanes of 32 bits. Every second lane contains no date, and its result is ignored.
        const __m512i year = _mm512_and_si512(date, _mm512_set1_epi64(0xffffffff));
        __mmask16 bad_dates = 0;
        const __m512i days = days_of(year, _mm512_srli_epi64(date, 32), &bad_dates);
        bad |= static_cast<__mmask8>(_pext_u32(bad_dates, 0x5555));
        const __m512i whole = _mm512_mul_epi32(days, _mm512_set1_epi64(86400));
        const __m512i clock = _mm512_add_epi64(_mm512_mul_epu32(minutes, _mm512_set1_epi64(60000000)),
                                               _mm512_add_epi64(_mm512_mul_epu32(seconds, _mm512_set1_epi64(10000)),
                                                                _mm512_srli_epi64(seconds, 32)));
        store_full(out + i, _mm512_add_epi64(_mm512_mullo_epi64(whole, _mm512_set1_epi64(MICROS_PER_SECOND)), clock));
    }
    return !wrong_characters && !bad;
}

template <bool zoned>
bool timestamps(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    constexpr uint32_t zone = zoned ? 3 : 0;
    if (column.statistics.longest <= 26 + zone && column.statistics.shortest >= 19 + zone && n >= CELLS &&
        usual_timestamps<zoned>(source, cells, n, out)) return true;
    return avx2::timestamps<zoned>(source, cells, n, out, column);
}

using avx2::intervals;

// Reads "HH:MM:SS", optionally with a point and one to six digits.
inline bool times(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    if (column.statistics.longest > 15 || column.statistics.shortest < 8) return false;
    if (n < CELLS) return avx2::times(source, cells, n, out, column);
    const __m512i expected = _mm512_broadcast_i32x4(
        _mm_setr_epi8('0', '0', ':', '0', '0', ':', '0', '0', '.', '0', '0', '0', '0', '0', '0', 0));
    const __m512i largest = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 9, 0, 5, 9, 0, 5, 9, 0, 9, 9, 9, 9, 9, 9, 0));
    const __m512i compact =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 3, 4, 6, 7, 9, 10, 11, 12, 13, 14, -1, -1, -1, -1));
    const __m512i factors = _mm512_broadcast_i32x4(
        _mm_setr_epi32(avx2::MINUTE_FACTORS, avx2::YEAR_FACTORS, avx2::YEAR_FACTORS, 0));
    const __m512i behind = load_full(BEHIND_16.of), low = _mm512_set1_epi64(0xffffffff);
    __mmask64 wrong_characters = 0;
    __mmask8 bad = 0;
    for (size_t i = 0; i < n; i += CELLS) {
        if (i + CELLS > n) i = n - CELLS;  // the last group may overlap the one before it
        const __m512i c = load_full(cells + i);
        __m512i fields[2];
        for (int k = 0; k < 2; ++k) {
            const Cell* at = cells + i + k;
            const uint8_t* base = source.base;
            const __m512i x =
                load_four(base + at[0].offset, base + at[2].offset, base + at[4].offset, base + at[6].offset);
            const __m512i length = _mm512_permutexvar_epi8(load_full(k ? ODD_LENGTHS.of : EVEN_LENGTHS.of), c);
            // A cell has sixteen lanes. A lane belongs to the text if more than 15 - length lanes follow it.
            const __mmask64 in_range = _mm512_cmpgt_epu8_mask(behind, _mm512_sub_epi8(_mm512_set1_epi8(15), length));
            const __m512i y = _mm512_maskz_sub_epi8(in_range, x, expected);
            wrong_characters |= _mm512_cmpgt_epu8_mask(y, largest);
            const __m512i pairs = _mm512_maddubs_epi16(_mm512_shuffle_epi8(y, compact), _mm512_set1_epi16(0x010a));
            fields[k] = _mm512_madd_epi16(pairs, factors);
        }
        // `clock` has the minutes and, in the high half, seconds * 100 plus the fraction's first two digits. `rest` has
        // the other four digits.
        const __m512i clock = _mm512_unpacklo_epi64(fields[0], fields[1]);
        const __m512i rest = _mm512_unpackhi_epi64(fields[0], fields[1]), minutes = _mm512_and_si512(clock, low);
        bad |= _mm512_cmpgt_epu64_mask(minutes, _mm512_set1_epi64(1439));
        bad |= _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(c, 32), _mm512_set1_epi64(9));  // a point without digits
        const __m512i seconds = _mm512_mul_epu32(_mm512_srli_epi64(clock, 32), _mm512_set1_epi64(10000));
        const __m512i micros = _mm512_mul_epu32(minutes, _mm512_set1_epi64(60000000));
        store_full(out + i, _mm512_add_epi64(_mm512_add_epi64(micros, seconds), rest));
    }
    return !wrong_characters && !bad;
}

}  // namespace pgo::avx512

#include "simd/avx512/off.hpp"
#endif
