// Floats as text, for processors with AVX-512; see simd/avx512/integers.hpp.
#pragma once
#include "simd/avx512/integers.hpp"

#ifdef PGO_AVX2
#include "simd/avx512/on.hpp"

namespace pgo::avx512 {

// For each lane, the index of the previous lane of the same cell. A cell has 32 lanes.
constexpr Bytes one_right() {
    Bytes b{};
    for (int k = 0; k < 64; ++k) b.of[k] = static_cast<uint8_t>(k % 32 ? k - 1 : k);
    return b;
}
inline constexpr Bytes ONE_RIGHT = one_right();

// The exact values of 10^k.
struct Tens {
    double of[24];
    constexpr Tens() : of() {
        double power = 1;
        for (int k = 0; k < 20; ++k, power *= 10) of[k] = power;
        for (int k = 20; k < 24; ++k) of[k] = 1;
    }
};
inline constexpr Tens TENS{};
constexpr int MOST_PLACES = 19;

// Returns value / 10^places, correctly rounded. The first quotient leaves a remainder, which is known exactly except
// for its last bit. The remainder is also divided. Before the last rounding, the relative error of the sum of both
// quotients is less than 2^-103. That is exact enough. An integer below 2^64, divided by at most 10^19, is either
// exactly halfway between two floats, or at a relative distance of at least 2^-99 from such a midpoint (the difference
// is a multiple of 1 / 5^19 times a power of two). If it is halfway, the second division has nothing to round.
inline __m512d quotients(__m512i value, __m512i places) {
    const __m512d low = _mm512_loadu_pd(TENS.of), middle = _mm512_loadu_pd(TENS.of + 8);
    __m512d divisor = _mm512_permutex2var_pd(low, places, middle);
    divisor = _mm512_mask_permutexvar_pd(divisor, _mm512_cmpgt_epi64_mask(places, _mm512_set1_epi64(15)), places,
                                         _mm512_loadu_pd(TENS.of + 16));
    const __m512d most = _mm512_cvtepu64_pd(value);
    const __m512d least = _mm512_cvtepi64_pd(_mm512_sub_epi64(value, _mm512_cvtpd_epu64(most)));
    const __m512d quotient = _mm512_div_pd(most, divisor);
    const __m512d rest = _mm512_add_pd(_mm512_fnmadd_pd(quotient, divisor, most), least);
    return _mm512_add_pd(quotient, _mm512_div_pd(rest, divisor));
}

// `of_pairs` joins masks of two cells each to one register with a bit per character, for the last 32 characters of
// eight cells. `Pairs` splits it again. `of_pairs` avoids memory, because a load of the whole would have to wait for
// all stores.
inline __m256i of_pairs(const __mmask64 masks[4]) {
    return _mm256_setr_epi64x(static_cast<int64_t>(masks[0]), static_cast<int64_t>(masks[1]),
                              static_cast<int64_t>(masks[2]), static_cast<int64_t>(masks[3]));
}
struct Pairs {
    alignas(32) uint64_t of[4];
    explicit Pairs(__m256i bits) { _mm256_store_si256(reinterpret_cast<__m256i*>(of), bits); }
};

inline void store_floats(double* out, __m512d x) { _mm512_storeu_pd(out, x); }
inline void store_floats(float* out, __m512d x) { _mm256_storeu_ps(out, _mm512_cvtpd_ps(x)); }

// Eight floats as integers, and how many of their digits are after the point. `usual` marks those that could be read.
struct EightNumbers {
    __m512i value, places;
    __mmask8 negative, usual;
};
inline EightNumbers read_eight(Source source, const Cell* cells) {
    const __m512i dot = _mm512_set1_epi8('.'), zero = _mm512_set1_epi8('0'), minus = _mm512_set1_epi8('-');
    const __m512i one_right = load_full(ONE_RIGHT.of);
    const __m512i c = load_full(cells);
    const Ends ends(c);
    __m512i x[4];
    __mmask64 points[4], zeros[4], signs[4], wrong[4];
    for (int k = 0; k < 4; ++k) {
        x[k] = load_two(source.base - 32 + ends.of[2 * k], source.base - 32 + ends.of[2 * k + 1]);
        points[k] = _mm512_cmpeq_epi8_mask(x[k], dot);
        zeros[k] = _mm512_cmpeq_epi8_mask(x[k], zero);
        signs[k] = _mm512_cmpeq_epi8_mask(x[k], minus);
    }
    // The highest bit stands for the last character. From here on, each lane is one cell.
    const __m256i ones = _mm256_set1_epi32(-1), most = _mm256_set1_epi32(32);
    const __m256i length = _mm512_cvtepi64_epi32(_mm512_srli_epi64(c, 32));
    const __m256i region = _mm256_sllv_epi32(ones, _mm256_sub_epi32(most, length));
    const __m256i sign = _mm256_and_si256(of_pairs(signs), _mm256_andnot_si256(_mm256_slli_epi32(region, 1), region));
    const __m256i number = _mm256_andnot_si256(sign, region);
    const __m256i point = _mm256_and_si256(of_pairs(points), number);
    const __m256i first = _mm256_andnot_si256(_mm256_slli_epi32(number, 1), number);
    // `after_point` is all ones without a point. All characters then count as characters after the point.
    const __m256i places = _mm256_lzcnt_epi32(point);
    const __m256i after_point = _mm256_sllv_epi32(ones, _mm256_sub_epi32(most, places));
    const __mmask8 pointed = _mm256_test_epi32_mask(point, point), negative = _mm256_test_epi32_mask(sign, sign);
    // Removing the point moves everything before it one position to the right.
    const __m256i digits = _mm256_mask_slli_epi32(number, pointed, number, 1);
    const Pairs behind_point(after_point), counted(digits);
    for (int k = 0; k < 4; ++k) {
        const __m512i moved = _mm512_permutexvar_epi8(one_right, x[k]);
        const __m512i compact = _mm512_mask_mov_epi8(moved, behind_point.of[k], x[k]);
        x[k] = _mm512_maskz_sub_epi8(counted.of[k], compact, zero);
        wrong[k] = _mm512_cmpgt_epu8_mask(x[k], _mm512_set1_epi8(9));
        x[k] = join_fours(x[k]);
    }
    __m512i joined[2];
    for (int k = 0; k < 2; ++k) {
        const __m512i fours = _mm512_packus_epi32(x[2 * k], x[2 * k + 1]);
        const __m512i eights = _mm512_madd_epi16(fours, _mm512_set1_epi32(0x00012710));
        joined[k] =
            _mm512_add_epi64(_mm512_mul_epu32(eights, _mm512_set1_epi64(100000000)), _mm512_srli_epi64(eights, 32));
    }
    // Each of the two has the high halves of its first and third cell, then their low halves, then the same for its
    // second and fourth cell.
    const __m512i high = _mm512_permutex2var_epi64(joined[0], _mm512_setr_epi64(0, 4, 1, 5, 8, 12, 9, 13), joined[1]);
    const __m512i low = _mm512_permutex2var_epi64(joined[0], _mm512_setr_epi64(2, 6, 3, 7, 10, 14, 11, 15), joined[1]);
    EightNumbers numbers;
    numbers.negative = negative;
    numbers.value = _mm512_add_epi64(low, _mm512_mullo_epi64(high, _mm512_set1_epi64(10000000000000000)));
    numbers.places = _mm512_maskz_mov_epi64(pointed, _mm512_cvtepu32_epi64(places));
    // Refuses a character that is not a digit, a leading zero before a character other than the point, a point without
    // a digit before it or after it, and too many digits.
    const __m256i after_zero = _mm256_slli_epi32(_mm256_and_si256(of_pairs(zeros), first), 1);
    const __m256i leading_zero = _mm256_andnot_si256(point, _mm256_and_si256(after_zero, number));
    const __m256i last = _mm256_set1_epi32(static_cast<int>(0x80000000));
    const __m256i lone_point = _mm256_and_si256(point, _mm256_or_si256(first, last));
    const __m256i any = _mm256_or_si256(of_pairs(wrong), _mm256_or_si256(leading_zero, lone_point));
    const __mmask8 long_ones = _mm256_cmpgt_epu32_mask(length, _mm256_set1_epi32(31));
    numbers.usual = static_cast<__mmask8>(~(_mm256_test_epi32_mask(any, any) | long_ones |
                                          _mm256_testn_epi32_mask(number, number) |
                                          _mm512_cmpgt_epu64_mask(high, _mm512_set1_epi64(999)) |
                                          _mm512_cmpgt_epu64_mask(numbers.places, _mm512_set1_epi64(MOST_PLACES))));
    return numbers;
}

// Reads floats without an exponent and with at most 19 significant digits. All others are parsed one by one instead of
// refusing the chunk, because they may be frequent.
template <class F>
bool floats(Source source, const Cell* cells, size_t n, F* out, const Column& column) noexcept {
    if (n < CELLS) return avx2::floats<F>(source, cells, n, out, column);
    for (size_t i = 0; i < n; i += CELLS) {
        if (i + CELLS > n) i = n - CELLS;  // the last group may overlap the one before it
        const EightNumbers numbers = read_eight(source, cells + i);
        __m512d x = quotients(numbers.value, numbers.places);
        x = _mm512_mask_xor_pd(x, numbers.negative, x, _mm512_set1_pd(-0.0));
        store_floats(out + i, x);
        __mmask8 usual = numbers.usual;
        // A double halfway between two values of F may be the result of rounding, so it is parsed again.
        if (sizeof(F) < sizeof(double))
            usual &= _mm512_cmpneq_epu64_mask(_mm512_and_si512(_mm512_castpd_si512(x), _mm512_set1_epi64(0x1fffffff)),
                                              _mm512_set1_epi64(0x10000000));
        for (uint32_t others = static_cast<uint8_t>(~usual); __builtin_expect(others != 0, 0); others &= others - 1) {
            const size_t k = i + _tzcnt_u32(others);
            const uint8_t* p = source.base + cells[k].offset;
            if (parse_float(p, static_cast<uint32_t>(cells[k].length), out + k)) return false;
        }
    }
    return true;
}

}  // namespace pgo::avx512

#include "simd/avx512/off.hpp"
#endif
