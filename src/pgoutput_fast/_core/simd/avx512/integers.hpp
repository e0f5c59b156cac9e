// Number loops for processors with AVX-512, like those of simd/avx2/, for eight cells at a time. The same rules apply:
// they accept only the form that nearly all cells have, and leave refused cells to other loops, first to those of AVX2.
//
// A register has four cells of sixteen bytes, or two of 32 bytes. The AVX2 loops check the sign, length and leading
// zero of every cell separately. These loops check eight cells at once, in masks or in a register with one lane per
// cell.
#pragma once
#include "simd/avx2/bytes.hpp"
#include "simd/avx2/cells.hpp"
#include "simd/avx2/floats.hpp"
#include "simd/avx2/integers.hpp"
#include "simd/avx2/money.hpp"
#include "simd/avx2/times.hpp"

#ifdef PGO_AVX2
#include "simd/avx512/on.hpp"

namespace pgo::avx512 {

using avx2::moneys;

constexpr size_t CELLS = 8;

inline __m512i load_full(const void* p) { return _mm512_loadu_si512(p); }
inline void store_full(void* p, __m512i v) { _mm512_storeu_si512(p, v); }

// Loads sixteen bytes from each of four cells.
inline __m512i load_four(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(avx2::load(a)), avx2::load(b), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(avx2::load(c)), avx2::load(d), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
// Loads 32 bytes from each of two cells.
inline __m512i load_two(const uint8_t* a, const uint8_t* b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(avx2::load_wide(a)), avx2::load_wide(b), 1);
}

// A table with one byte per lane, for example for a byte shuffle.
struct Bytes {
    uint8_t of[64];
};
// Makes a shuffle table that copies byte `byte` of a cell's word to all lanes of that cell. It takes `cells_at_once`
// cells: cell `first`, then every `step`-th cell. Each cell gets an equal share of the 64 lanes.
constexpr Bytes spread(int first, int step, int cells_at_once, int byte) {
    Bytes b{};
    for (int k = 0; k < 64; ++k)
        b.of[k] = static_cast<uint8_t>(8 * (first + step * (k / (64 / cells_at_once))) + byte);
    return b;
}
// For each lane: the number of later lanes of the same cell. A cell has `width` lanes.
constexpr Bytes behind(int width) {
    Bytes b{};
    for (int k = 0; k < 64; ++k) b.of[k] = static_cast<uint8_t>(width - 1 - k % width);
    return b;
}
constexpr int LENGTH_BYTE = 4;  // index of the lowest byte of the length in a cell's word
inline constexpr Bytes EVEN_LENGTHS = spread(0, 2, 4, LENGTH_BYTE);
inline constexpr Bytes ODD_LENGTHS = spread(1, 2, 4, LENGTH_BYTE);
inline constexpr Bytes BEHIND_16 = behind(16);

// The ends of eight cells, relative to the source's base.
struct Ends {
    alignas(64) uint64_t of[CELLS];
    explicit Ends(__m512i cells) {
        const __m512i end = _mm512_add_epi32(cells, _mm512_srli_epi64(cells, 32));
        _mm512_store_si512(of, _mm512_and_si512(end, _mm512_set1_epi64(0xffffffff)));
    }
};

// Turns one bit per byte into one bit per cell of sixteen bytes. There is a mask of even cells and one of odd cells.
inline __mmask8 of_cells(__mmask64 even, __mmask64 odd) {
    const __m128i words = _mm_unpacklo_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(even)),
                                             _mm_cvtsi64_si128(static_cast<int64_t>(odd)));
    return _mm_test_epi16_mask(words, words);
}

// Joins pairs of digits (0 to 9, highest first) to numbers, and pairs of these: four digits per lane of 32 bits.
inline __m512i join_fours(__m512i x) {
    x = _mm512_maddubs_epi16(x, _mm512_set1_epi16(0x010a));
    return _mm512_madd_epi16(x, _mm512_set1_epi32(0x00010064));
}
// Joins the digits of four even cells and four odd cells, sixteen digits per cell, to eight numbers.
inline __m512i join_sixteens(__m512i even, __m512i odd) {
    const __m512i eights = _mm512_madd_epi16(_mm512_packus_epi32(join_fours(even), join_fours(odd)),
                                             _mm512_set1_epi32(0x00012710));
    return _mm512_add_epi64(_mm512_mul_epu32(eights, _mm512_set1_epi64(100000000)), _mm512_srli_epi64(eights, 32));
}

// Entry k is the smallest number with k + 1 digits and no leading zero.
struct Least {
    int64_t of[16];
    constexpr Least() : of() {
        int64_t power = 1;
        for (int k = 1; k < 16; ++k) of[k] = power *= 10;
    }
};
inline constexpr Least LEAST{};

// Looks up each lane's index in a table of 16 words. Only the lowest four bits of the index count.
inline __m512i look_up(__m512i index, __m512i low, __m512i high) { return _mm512_permutex2var_epi64(low, index, high); }

inline void store_numbers(int64_t* out, __m512i x) { store_full(out, x); }
inline void store_numbers(int32_t* out, __m512i x) {
    avx2::store_wide(reinterpret_cast<uint8_t*>(out), _mm512_cvtepi64_epi32(x));
}
inline void store_numbers(int16_t* out, __m512i x) {
    avx2::store(reinterpret_cast<uint8_t*>(out), _mm512_cvtepi64_epi16(x));
}
// Stores each number with 128 bits.
inline void store_numbers(int128* out, __m512i x) {
    const __m512i sign = _mm512_srai_epi64(x, 63);
    store_full(out, _mm512_permutex2var_epi64(x, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), sign));
    store_full(out + 4, _mm512_permutex2var_epi64(x, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), sign));
}

// The digits of four cells. Each cell's last character is the last of its sixteen bytes.
struct Digits {
    __mmask64 minus, bad;
    __m512i values;  // 0 to 9; 0 before the first digit
};
inline Digits digits_of(__m512i x, __m512i length) {
    const __m512i behind = load_full(BEHIND_16.of), zero = _mm512_set1_epi8('0');
    const __mmask64 region = _mm512_cmplt_epu8_mask(behind, length);
    const __mmask64 first = _mm512_cmpeq_epi8_mask(behind, _mm512_sub_epi8(length, _mm512_set1_epi8(1)));
    Digits d;
    d.minus = _mm512_mask_cmpeq_epi8_mask(first, x, _mm512_set1_epi8('-'));
    d.values = _mm512_maskz_sub_epi8(_kandn_mask64(d.minus, region), x, zero);
    d.bad = _mm512_cmpgt_epu8_mask(d.values, _mm512_set1_epi8(9));
    return d;
}

// Reads integers of at most 16 characters. With `wide` they may have 20; the characters before the last sixteen are
// then read separately.
template <class T, bool wide>
bool integers_of(Source source, const Cell* cells, size_t n, T* out) noexcept {
    const __m512i least_low = load_full(LEAST.of), least_high = load_full(LEAST.of + 8), one = _mm512_set1_epi64(1);
    const __m512i zero = _mm512_setzero_si512();
    const __m512i even_lengths = load_full(EVEN_LENGTHS.of), odd_lengths = load_full(ODD_LENGTHS.of);
    __mmask64 wrong_characters = 0;
    __mmask8 bad = 0;
    for (size_t i = 0; i < n; i += CELLS) {
        if (i + CELLS > n) i = n - CELLS;  // the last group may overlap the one before it
        const __m512i c = load_full(cells + i), length = _mm512_srli_epi64(c, 32);
        const Ends ends(c);
        const uint8_t* base = source.base - 16;
        const __m512i x = load_four(base + ends.of[0], base + ends.of[2], base + ends.of[4], base + ends.of[6]);
        const __m512i y = load_four(base + ends.of[1], base + ends.of[3], base + ends.of[5], base + ends.of[7]);
        const Digits a = digits_of(x, _mm512_permutexvar_epi8(even_lengths, c));
        const Digits b = digits_of(y, _mm512_permutexvar_epi8(odd_lengths, c));
        __m512i value = join_sixteens(a.values, b.values);
        __mmask8 minus = of_cells(a.minus, b.minus);
        wrong_characters |= a.bad | b.bad;
        __mmask8 at_most_sixteen = 0xff;  // cells with at most sixteen digits
        if (wide) {
            const uint8_t* top = base - 8;
            const __m512i high = _mm512_set_epi64(
                static_cast<int64_t>(load64_raw(top + ends.of[7])), static_cast<int64_t>(load64_raw(top + ends.of[6])),
                static_cast<int64_t>(load64_raw(top + ends.of[5])), static_cast<int64_t>(load64_raw(top + ends.of[4])),
                static_cast<int64_t>(load64_raw(top + ends.of[3])), static_cast<int64_t>(load64_raw(top + ends.of[2])),
                static_cast<int64_t>(load64_raw(top + ends.of[1])), static_cast<int64_t>(load64_raw(top + ends.of[0])));
            const __m512i lanes = _mm512_set1_epi64(0x1011121314151617), lengths = _mm512_shuffle_epi8(
                c, _mm512_broadcast_i32x4(_mm_setr_epi8(4, 4, 4, 4, 4, 4, 4, 4, 12, 12, 12, 12, 12, 12, 12, 12)));
            const __mmask64 region = _mm512_cmplt_epu8_mask(lanes, lengths);
            const __mmask64 first = _mm512_cmpeq_epi8_mask(lanes, _mm512_sub_epi8(lengths, _mm512_set1_epi8(1)));
            const __mmask64 sign = _mm512_mask_cmpeq_epi8_mask(first, high, _mm512_set1_epi8('-'));
            const __m512i digits = _mm512_maskz_sub_epi8(_kandn_mask64(sign, region), high, _mm512_set1_epi8('0'));
            wrong_characters |= _mm512_cmpgt_epu8_mask(digits, _mm512_set1_epi8(9));
            const __m128i signs = _mm_cvtsi64_si128(static_cast<int64_t>(sign));
            minus |= static_cast<__mmask8>(_mm_test_epi8_mask(signs, signs));
            const __m512i number = _mm512_srli_epi64(join_fours(digits), 32);
            const __m512i unsigned_length = _mm512_mask_sub_epi64(length, minus, length, one);
            const __m512i count = _mm512_subs_epu16(unsigned_length, _mm512_set1_epi64(16));
            at_most_sixteen = _mm512_cmpeq_epi64_mask(count, zero);
            // 19 digits cannot overflow 64 bits. More than three digits before the last sixteen are refused.
            const __m512i powers = _mm512_setr_epi64(0, 1, 10, 100, 1000, 1000, 1000, 1000);
            const __m512i fewest = _mm512_permutexvar_epi64(count, powers);
            bad |= _mm512_cmplt_epu64_mask(number, fewest) | _mm512_cmpgt_epu64_mask(number, _mm512_set1_epi64(999));
            value = _mm512_add_epi64(value, _mm512_mullo_epi64(number, _mm512_set1_epi64(10000000000000000)));
        }
        // The index is the number of digits minus one. A sign without digits gets the last entry. Its value, zero, is
        // less than that entry, so it is refused.
        const __m512i index =
            _mm512_mask_sub_epi64(_mm512_sub_epi64(length, one), minus, length, _mm512_set1_epi64(2));
        __m512i least = look_up(index, least_low, least_high);
        least = _mm512_mask_max_epi64(least, minus, least, one);
        bad |= _mm512_mask_cmplt_epu64_mask(at_most_sixteen, value, least);
        if (wide) {
            const __m512i most = _mm512_set1_epi64(std::numeric_limits<int64_t>::max());
            bad |= _mm512_cmpgt_epu64_mask(value, _mm512_mask_add_epi64(most, minus, most, one));
        }
        value = _mm512_mask_sub_epi64(value, minus, zero, value);
        if (sizeof(T) < 8) {
            bad |= _mm512_cmpgt_epi64_mask(value, _mm512_set1_epi64(std::numeric_limits<T>::max()));
            bad |= _mm512_cmplt_epi64_mask(value, _mm512_set1_epi64(std::numeric_limits<T>::min()));
        }
        store_numbers(out + i, value);
    }
    return !(wrong_characters | bad);
}

template <class T>
bool integers(Source source, const Cell* cells, size_t n, T* out, const Column& column) noexcept {
    if (column.statistics.longest <= 16 && n >= CELLS && integers_of<T, false>(source, cells, n, out)) return true;
    return avx2::integers<T>(source, cells, n, out, column);
}

inline bool long_integers(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    if (column.statistics.longest <= 16) return integers<int64_t>(source, cells, n, out, column);
    if (column.statistics.longest <= 20 && n >= CELLS && integers_of<int64_t, true>(source, cells, n, out)) return true;
    return avx2::long_integers(source, cells, n, out, column);
}

inline bool oids(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    if (!integers<int64_t>(source, cells, n, out, column)) return false;
    uint64_t beyond = 0;
    for (size_t i = 0; i < n; ++i) beyond |= static_cast<uint64_t>(out[i]);
    return beyond >> 32 == 0;  // a negative number has higher bits too
}

// Reads decimals with as many digits after the point as the scale says.
inline bool usual_decimals(Source source, const Cell* cells, size_t n, int128* out, const Column& column) noexcept {
    const int scale = column.plan.scale, point = scale != 0;
    if (scale < 0 || scale >= avx2::MOST_PRECISION || column.statistics.longest > 16 || n < CELLS) return false;
    const int most = column.plan.precision < avx2::MOST_PRECISION ? column.plan.precision : avx2::MOST_PRECISION;
    // The smallest valid number per number of characters minus one. With too few or too many digits, no value reaches
    // it.
    int64_t least[16];
    for (int k = 0; k < 16; ++k) {
        const int digits = k + 1 - point;
        least[k] = digits <= scale || digits > most ? std::numeric_limits<int64_t>::max()
                   : digits > scale + 1              ? LEAST.of[digits - 1]
                                                     : 0;
    }
    alignas(16) uint8_t lanes[16];
    for (int k = 0; k < 16; ++k) lanes[k] = static_cast<uint8_t>(k > 15 - scale ? k : k - point);
    const __m512i compact = _mm512_broadcast_i32x4(avx2::load(lanes));
    const __m512i dot = _mm512_set1_epi8(static_cast<char>('.' - '0'));
    const __mmask64 dots = point ? 0x0001000100010001ull << (15 - scale) : 0;
    const __m512i least_low = load_full(least), least_high = load_full(least + 8), one = _mm512_set1_epi64(1);
    const __m512i even_lengths = load_full(EVEN_LENGTHS.of), odd_lengths = load_full(ODD_LENGTHS.of);
    __mmask64 wrong_characters = 0, pointed = dots;
    __mmask8 bad = 0;
    for (size_t i = 0; i < n; i += CELLS) {
        if (i + CELLS > n) i = n - CELLS;  // the last group may overlap the one before it
        const __m512i c = load_full(cells + i), length = _mm512_srli_epi64(c, 32);
        const Ends ends(c);
        const uint8_t* base = source.base - 16;
        const __m512i x = load_four(base + ends.of[0], base + ends.of[2], base + ends.of[4], base + ends.of[6]);
        const __m512i y = load_four(base + ends.of[1], base + ends.of[3], base + ends.of[5], base + ends.of[7]);
        const Digits a = digits_of(x, _mm512_permutexvar_epi8(even_lengths, c));
        const Digits b = digits_of(y, _mm512_permutexvar_epi8(odd_lengths, c));
        wrong_characters |= a.bad | b.bad;
        // Only the points may be characters other than digits, so the final check needs both masks.
        pointed &= _mm512_mask_cmpeq_epi8_mask(a.bad, a.values, dot);
        pointed &= _mm512_mask_cmpeq_epi8_mask(b.bad, b.values, dot);
        __m512i value = join_sixteens(_mm512_shuffle_epi8(a.values, compact), _mm512_shuffle_epi8(b.values, compact));
        const __mmask8 minus = of_cells(a.minus, b.minus);
        const __m512i index =
            _mm512_mask_sub_epi64(_mm512_sub_epi64(length, one), minus, length, _mm512_set1_epi64(2));
        __m512i fewest = look_up(index, least_low, least_high);
        fewest = _mm512_mask_max_epi64(fewest, minus, fewest, one);
        bad |= _mm512_cmplt_epi64_mask(value, fewest);
        value = _mm512_mask_sub_epi64(value, minus, _mm512_setzero_si512(), value);
        store_numbers(out + i, value);
    }
    return wrong_characters == dots && pointed == dots && !bad;
}

inline bool decimals(Source source, const Cell* cells, size_t n, int128* out, const Column& column) noexcept {
    return usual_decimals(source, cells, n, out, column) || avx2::decimals(source, cells, n, out, column);
}

// Division of a number below 10000 by 1, 10, 100 or 1000: multiply by one of these factors and shift right by 23.
constexpr uint32_t QUOTIENT_SHIFT = 23;
constexpr uint32_t QUOTIENT_FACTORS[4] = {1u << QUOTIENT_SHIFT, 838861, 83887, 8389};
constexpr bool quotients_are_exact() {
    for (uint32_t k = 0, power = 1; k < 4; ++k, power *= 10)
        for (uint32_t x = 0; x < 10000; ++x)
            if (static_cast<uint32_t>(uint64_t{x} * QUOTIENT_FACTORS[k] >> QUOTIENT_SHIFT) != x / power) return false;
    return true;
}
static_assert(quotients_are_exact());

// Reads the same decimals in binary format. The display scale must be the column's scale, and there may be at most four
// digits in base 10000. The digits are arranged so that the last one contains the last decimal places of the scale.
inline bool usual_binary_decimals(Source source, const Cell* cells, size_t n, int128* out,
                                  const Column& column) noexcept {
    const int scale = column.plan.scale, behind = (scale + 3) / 4;  // base-10000 digits after the point
    if (column.plan.precision > avx2::MOST_PRECISION || scale < 0 || behind > 4 || n < CELLS) return false;
    const int hidden = 4 * behind - scale;  // decimal places of the last digit that must be zeros
    const int64_t power = static_cast<int64_t>(POWERS_OF_TEN[hidden]);
    const __m512i limit = _mm512_set1_epi64(static_cast<int64_t>(POWERS_OF_TEN[column.plan.precision] - 1));
    const __m512i factor = _mm512_set1_epi64(QUOTIENT_FACTORS[hidden]), unit = _mm512_set1_epi64(power);
    // Factors that join digits in pairs. The last digit has already been divided by `power`.
    const __m512i pairs = _mm512_set1_epi64(0x2710000100000001 | (10000 / power) << 16);
    const __m512i high_pair = _mm512_set1_epi64(100000000 / power);
    const __m512i reverse = _mm512_broadcast_i32x4(_mm_setr_epi8(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8));
    const __m512i ones = _mm512_set1_epi64(-1), last = _mm512_set1_epi64(0xffff), zero = _mm512_setzero_si512();
    const __m512i shown = _mm512_set1_epi64(scale);
    __m512i mismatch = zero;
    __mmask32 wrong_digits = 0;
    __mmask8 bad = 0;
    for (size_t i = 0; i < n; i += CELLS) {
        if (i + CELLS > n) i = n - CELLS;  // the last group may overlap the one before it
        const uint8_t* base = source.base;
        const Cell* at = cells + i;
        const __m512i x = load_four(base + at[0].offset, base + at[2].offset, base + at[4].offset, base + at[6].offset);
        const __m512i y = load_four(base + at[1].offset, base + at[3].offset, base + at[5].offset, base + at[7].offset);
        const __m512i header = _mm512_shuffle_epi8(_mm512_unpacklo_epi64(x, y), reverse);
        __m512i digits = _mm512_shuffle_epi8(_mm512_unpackhi_epi64(x, y), reverse);
        const __m512i length = _mm512_srli_epi64(load_full(at), 32), count = _mm512_srli_epi64(header, 48);
        // The header's low half may contain only a sign and the scale. The length must match the number of digits.
        const __m512i low_half = _mm512_and_si512(header, _mm512_set1_epi64(0xbfffffff));
        const __m512i expected = _mm512_add_epi64(_mm512_add_epi64(count, count), _mm512_set1_epi64(8));
        mismatch = _mm512_or_si512(mismatch, _mm512_xor_si512(low_half, shown));
        mismatch = _mm512_or_si512(mismatch, _mm512_xor_si512(length, expected));
        digits = _mm512_andnot_si512(_mm512_srlv_epi64(ones, _mm512_slli_epi64(count, 4)), digits);
        wrong_digits |= _mm512_cmpgt_epu16_mask(digits, _mm512_set1_epi16(9999));
        // The number of zero digits before the first digit. With these, there may be at most four digits; the shift
        // would lose others.
        const __m512i weight = _mm512_srai_epi64(_mm512_slli_epi64(header, 16), 48);
        const __m512i before = _mm512_sub_epi64(_mm512_set1_epi64(3 - behind), weight);
        bad |= _mm512_cmpgt_epu64_mask(count, _mm512_set1_epi64(4));
        // Without digits the value is zero, whatever its weight.
        const __mmask8 some = _mm512_test_epi64_mask(count, count);
        bad |= _mm512_mask_cmpgt_epu64_mask(some, _mm512_add_epi64(before, count), _mm512_set1_epi64(4));
        bad |= _mm512_mask_cmpgt_epu64_mask(some, before, _mm512_set1_epi64(4));
        digits = _mm512_srlv_epi64(digits, _mm512_slli_epi64(before, 4));
        const __m512i rest = _mm512_and_si512(digits, last);
        const __m512i quotient = _mm512_srli_epi64(_mm512_mul_epu32(rest, factor), QUOTIENT_SHIFT);
        mismatch = _mm512_or_si512(mismatch, _mm512_xor_si512(_mm512_mul_epu32(quotient, unit), rest));
        digits = _mm512_or_si512(_mm512_andnot_si512(last, digits), quotient);
        const __m512i joined = _mm512_madd_epi16(digits, pairs);
        const __m512i value = _mm512_add_epi64(_mm512_mul_epu32(_mm512_srli_epi64(joined, 32), high_pair),
                                               _mm512_and_si512(joined, _mm512_set1_epi64(0xffffffff)));
        bad |= _mm512_cmpgt_epu64_mask(value, limit);
        const __mmask8 minus = _mm512_test_epi64_mask(header, _mm512_set1_epi64(0x40000000));
        store_numbers(out + i, _mm512_mask_sub_epi64(value, minus, zero, value));
    }
    return !wrong_digits && !bad && !_mm512_test_epi64_mask(mismatch, mismatch);
}

inline bool binary_decimals(Source source, const Cell* cells, size_t n, int128* out, const Column& column) noexcept {
    return usual_binary_decimals(source, cells, n, out, column) || avx2::binary_decimals(source, cells, n, out, column);
}

}  // namespace pgo::avx512

#include "simd/avx512/off.hpp"
#endif
