// The AVX-512 instructions that the vector loops use, emulated lane by lane for processors that have only AVX2. They
// follow Intel's manual. Undefined results are filled with a pattern, so a loop that uses them gives wrong results.
// Included instead of the loops' own on.hpp, this restricts the compiler to AVX2.
#pragma once
#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,fma")

namespace emulated {

template <class T, class V>
std::array<T, sizeof(V) / sizeof(T)> lanes(V v) {
    std::array<T, sizeof(V) / sizeof(T)> found;
    std::memcpy(&found, &v, sizeof v);
    return found;
}
template <class V, class A>
V vector_of(const A& lanes) {
    static_assert(sizeof(V) == sizeof(A));
    V v;
    std::memcpy(&v, &lanes, sizeof v);
    return v;
}
template <class T, class V, class F>
V each(V a, F f) {
    auto x = lanes<T>(a);
    for (T& lane : x) lane = static_cast<T>(f(lane));
    return vector_of<V>(x);
}
template <class T, class V, class F>
V each(V a, V b, F f) {
    auto x = lanes<T>(a);
    const auto y = lanes<T>(b);
    for (size_t k = 0; k < x.size(); ++k) x[k] = static_cast<T>(f(x[k], y[k]));
    return vector_of<V>(x);
}
template <class T, class V, class F>
uint64_t which(V a, V b, F f) {
    const auto x = lanes<T>(a), y = lanes<T>(b);
    uint64_t mask = 0;
    for (size_t k = 0; k < x.size(); ++k) mask |= static_cast<uint64_t>(f(x[k], y[k])) << k;
    return mask;
}
// The lanes of b where the mask has a bit, and those of a elsewhere.
template <class T, class V>
V blend(uint64_t mask, V a, V b) {
    auto x = lanes<T>(a);
    const auto y = lanes<T>(b);
    for (size_t k = 0; k < x.size(); ++k)
        if (mask >> k & 1) x[k] = y[k];
    return vector_of<V>(x);
}
template <class T, class V, class F>
auto reduced(V v, F f) {
    const auto x = lanes<T>(v);
    T found = x[0];
    for (size_t k = 1; k < x.size(); ++k) found = static_cast<T>(f(found, x[k]));
    return found;
}
// Converts every lane of a vector to a lane of another vector.
template <class V, class To, class From, class W>
V converted(W w) {
    const auto x = lanes<From>(w);
    std::array<To, sizeof(V) / sizeof(To)> y{};
    for (size_t k = 0; k < x.size() && k < y.size(); ++k) y[k] = static_cast<To>(x[k]);
    return vector_of<V>(y);
}
// A cast of a part to a whole register leaves the rest undefined.
template <class W>
__m512i widened(W part) {
    __m512i v;
    std::memset(&v, 0xa5, sizeof v);
    std::memcpy(&v, &part, sizeof part);
    return v;
}
template <class V, class Part>
V repeated(Part part) {
    V v;
    for (size_t k = 0; k < sizeof v; k += sizeof part) std::memcpy(reinterpret_cast<char*>(&v) + k, &part, sizeof part);
    return v;
}
// Moves the lanes selected by the mask together to the front; and from the front back to their positions.
template <class T, class V>
V compressed(uint64_t mask, V v) {
    const auto x = lanes<T>(v);
    std::array<T, sizeof(V) / sizeof(T)> y{};
    for (size_t k = 0, to = 0; k < x.size(); ++k)
        if (mask >> k & 1) y[to++] = x[k];
    return vector_of<V>(y);
}
template <class T, class V>
V expanded(uint64_t mask, V v) {
    const auto x = lanes<T>(v);
    std::array<T, sizeof(V) / sizeof(T)> y{};
    for (size_t k = 0, from = 0; k < x.size(); ++k)
        if (mask >> k & 1) y[k] = x[from++];
    return vector_of<V>(y);
}
// Lanes that the mask excludes are neither read nor written.
template <class T, class V>
void stored(void* to, uint64_t mask, V v) {
    const auto x = lanes<T>(v);
    for (size_t k = 0; k < x.size(); ++k)
        if (mask >> k & 1) std::memcpy(static_cast<char*>(to) + k * sizeof(T), &x[k], sizeof(T));
}
template <class T, class V>
V loaded(uint64_t mask, const void* from) {
    std::array<T, sizeof(V) / sizeof(T)> x{};
    for (size_t k = 0; k < x.size(); ++k)
        if (mask >> k & 1) std::memcpy(&x[k], static_cast<const char*>(from) + k * sizeof(T), sizeof(T));
    return vector_of<V>(x);
}
// Lanes of one or two tables, by the low bits of the indexes.
template <class T, class I, class V, class W>
V permuted(W indexes, V a) {
    const auto at = lanes<I>(indexes);
    const auto x = lanes<T>(a);
    auto y = x;
    for (size_t k = 0; k < y.size(); ++k) y[k] = x[static_cast<uint64_t>(at[k]) % x.size()];
    return vector_of<V>(y);
}
template <class T, class I, class V, class W>
V permuted(V a, W indexes, V b) {
    const auto at = lanes<I>(indexes);
    const auto x = lanes<T>(a), y = lanes<T>(b);
    auto found = x;
    for (size_t k = 0; k < found.size(); ++k) {
        const uint64_t place = static_cast<uint64_t>(at[k]) % (2 * x.size());
        found[k] = place < x.size() ? x[place] : y[place - x.size()];
    }
    return vector_of<V>(found);
}
// Applies the same function to each 128 bits of two vectors.
template <class F>
__m512i by_quarters(__m512i a, __m512i b, F f) {
    const auto x = lanes<__m128i>(a), y = lanes<__m128i>(b);
    std::array<__m128i, 4> found;
    for (size_t k = 0; k < 4; ++k) found[k] = f(x[k], y[k]);
    return vector_of<__m512i>(found);
}
constexpr auto PLUS = [](auto a, auto b) { return a + b; };
constexpr auto MINUS = [](auto a, auto b) { return a - b; };
constexpr auto TIMES = [](auto a, auto b) { return a * b; };
constexpr auto SMALLER = [](auto a, auto b) { return a < b ? a : b; };
constexpr auto LARGER = [](auto a, auto b) { return a > b ? a : b; };
constexpr auto EQUAL = [](auto a, auto b) { return a == b; };
constexpr auto OTHER = [](auto a, auto b) { return a != b; };
constexpr auto LESS = [](auto a, auto b) { return a < b; };
constexpr auto LESS_OR_EQUAL = [](auto a, auto b) { return a <= b; };
constexpr auto GREATER = [](auto a, auto b) { return a > b; };
constexpr auto GREATER_OR_EQUAL = [](auto a, auto b) { return a >= b; };
constexpr auto BITS_IN_BOTH = [](auto a, auto b) { return (a & b) != 0; };
constexpr auto NO_BITS_IN_BOTH = [](auto a, auto b) { return (a & b) == 0; };

}  // namespace emulated

// The loops are in this namespace, so they find these functions before the compiler's.
namespace pgo::avx512 {

using namespace emulated;

#undef _mm512_setr_epi64  // a macro in GCC

// ---- whole registers ----

inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512i _mm512_set1_epi8(int x) { return repeated<__m512i>(static_cast<int8_t>(x)); }
inline __m512i _mm512_set1_epi16(int x) { return repeated<__m512i>(static_cast<int16_t>(x)); }
inline __m512i _mm512_set1_epi32(int x) { return repeated<__m512i>(x); }
inline __m512i _mm512_set1_epi64(long long x) { return repeated<__m512i>(x); }
inline __m512d _mm512_set1_pd(double x) { return repeated<__m512d>(x); }
inline __m512i _mm512_setr_epi64(long long a, long long b, long long c, long long d, long long e, long long f,
                                 long long g, long long h) {
    return vector_of<__m512i>(std::array<long long, 8>{a, b, c, d, e, f, g, h});
}
inline __m512i _mm512_set_epi64(long long a, long long b, long long c, long long d, long long e, long long f,
                                long long g, long long h) {
    return _mm512_setr_epi64(h, g, f, e, d, c, b, a);
}
inline __m512i _mm512_broadcast_i32x4(__m128i x) { return repeated<__m512i>(x); }
inline __m512i _mm512_broadcast_i64x4(__m256i x) { return repeated<__m512i>(x); }
inline __m512i _mm512_castsi128_si512(__m128i x) { return widened(x); }
inline __m512i _mm512_castsi256_si512(__m256i x) { return widened(x); }
inline __m512 _mm512_castsi512_ps(__m512i x) { return vector_of<__m512>(lanes<uint64_t>(x)); }
inline __m512i _mm512_castps_si512(__m512 x) { return vector_of<__m512i>(lanes<uint64_t>(x)); }
inline __m512i _mm512_castpd_si512(__m512d x) { return vector_of<__m512i>(lanes<uint64_t>(x)); }
inline __m512i _mm512_inserti64x4(__m512i a, __m256i b, int half) {
    auto x = lanes<__m256i>(a);
    x[half & 1] = b;
    return vector_of<__m512i>(x);
}
inline __m512i _mm512_loadu_si512(const void* p) { return loaded<uint8_t, __m512i>(~0ull, p); }
inline __m512d _mm512_loadu_pd(const void* p) { return loaded<double, __m512d>(~0ull, p); }
inline void _mm512_storeu_si512(void* p, __m512i x) { stored<uint8_t>(p, ~0ull, x); }
inline void _mm512_store_si512(void* p, __m512i x) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof x != 0) __builtin_trap();
    stored<uint8_t>(p, ~0ull, x);
}
inline void _mm512_storeu_pd(void* p, __m512d x) { stored<double>(p, ~0ull, x); }

// ---- bits ----

inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return each<uint64_t>(a, b, [](auto x, auto y) { return x & y; }); }
inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return each<uint64_t>(a, b, [](auto x, auto y) { return x | y; }); }
inline __m512i _mm512_xor_si512(__m512i a, __m512i b) { return each<uint64_t>(a, b, [](auto x, auto y) { return x ^ y; }); }
inline __m512i _mm512_andnot_si512(__m512i a, __m512i b) {
    return each<uint64_t>(a, b, [](auto x, auto y) { return ~x & y; });
}
inline __m512i _mm512_ternarylogic_epi64(__m512i a, __m512i b, __m512i c, int table) {
    const auto x = lanes<uint64_t>(a), y = lanes<uint64_t>(b), z = lanes<uint64_t>(c);
    std::array<uint64_t, 8> found{};
    for (size_t k = 0; k < 8; ++k)
        for (int bit = 0; bit < 64; ++bit) {
            const int place = static_cast<int>((x[k] >> bit & 1) << 2 | (y[k] >> bit & 1) << 1 | (z[k] >> bit & 1));
            found[k] |= static_cast<uint64_t>(table >> place & 1) << bit;
        }
    return vector_of<__m512i>(found);
}
inline __m512i _mm512_srli_epi64(__m512i a, unsigned n) {
    return each<uint64_t>(a, [n](auto x) { return n < 64 ? x >> n : 0; });
}
inline __m512i _mm512_slli_epi64(__m512i a, unsigned n) {
    return each<uint64_t>(a, [n](auto x) { return n < 64 ? x << n : 0; });
}
inline __m512i _mm512_srai_epi64(__m512i a, unsigned n) {
    return each<int64_t>(a, [n](auto x) { return x >> (n < 63 ? n : 63); });
}
inline __m512i _mm512_srli_epi32(__m512i a, unsigned n) {
    return each<uint32_t>(a, [n](auto x) { return n < 32 ? x >> n : 0; });
}
inline __m512i _mm512_srlv_epi64(__m512i a, __m512i n) {
    return each<uint64_t>(a, n, [](auto x, auto y) { return y < 64 ? x >> y : 0; });
}
inline __m256i _mm256_mask_slli_epi32(__m256i from, __mmask8 mask, __m256i a, unsigned n) {
    return blend<uint32_t>(mask, from, each<uint32_t>(a, [n](auto x) { return n < 32 ? x << n : 0; }));
}
inline __m256i _mm256_lzcnt_epi32(__m256i a) {
    return each<uint32_t>(a, [](auto x) { return x ? __builtin_clz(x) : 32; });
}

// ---- numbers ----

inline __m512i _mm512_add_epi64(__m512i a, __m512i b) { return each<uint64_t>(a, b, PLUS); }
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) { return each<uint32_t>(a, b, PLUS); }
inline __m512i _mm512_sub_epi64(__m512i a, __m512i b) { return each<uint64_t>(a, b, MINUS); }
inline __m512i _mm512_sub_epi32(__m512i a, __m512i b) { return each<uint32_t>(a, b, MINUS); }
inline __m512i _mm512_sub_epi8(__m512i a, __m512i b) { return each<uint8_t>(a, b, MINUS); }
inline __m512i _mm512_subs_epu16(__m512i a, __m512i b) {
    return each<uint16_t>(a, b, [](auto x, auto y) { return x > y ? x - y : 0; });
}
inline __m512i _mm512_mullo_epi64(__m512i a, __m512i b) { return each<uint64_t>(a, b, TIMES); }
inline __m512i _mm512_mul_epu32(__m512i a, __m512i b) {
    return each<uint64_t>(a, b, [](auto x, auto y) { return (x & UINT32_MAX) * (y & UINT32_MAX); });
}
inline __m512i _mm512_mul_epi32(__m512i a, __m512i b) {
    return each<int64_t>(a, b, [](auto x, auto y) { return int64_t{static_cast<int32_t>(x)} * static_cast<int32_t>(y); });
}
inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    return by_quarters(a, b, [](__m128i x, __m128i y) { return _mm_madd_epi16(x, y); });
}
inline __m512i _mm512_maddubs_epi16(__m512i a, __m512i b) {
    return by_quarters(a, b, [](__m128i x, __m128i y) { return _mm_maddubs_epi16(x, y); });
}
inline __m512i _mm512_max_epi32(__m512i a, __m512i b) { return each<int32_t>(a, b, LARGER); }
inline __m512i _mm512_min_epu32(__m512i a, __m512i b) { return each<uint32_t>(a, b, SMALLER); }
inline uint32_t _mm512_reduce_min_epu32(__m512i a) { return reduced<uint32_t>(a, SMALLER); }
inline uint32_t _mm512_reduce_max_epu32(__m512i a) { return reduced<uint32_t>(a, LARGER); }
inline int _mm512_reduce_add_epi32(__m512i a) { return static_cast<int>(reduced<uint32_t>(a, PLUS)); }
inline __m512d _mm512_add_pd(__m512d a, __m512d b) { return each<double>(a, b, PLUS); }
inline __m512d _mm512_div_pd(__m512d a, __m512d b) {
    return each<double>(a, b, [](double x, double y) { return x / y; });
}
inline __m512d _mm512_fnmadd_pd(__m512d a, __m512d b, __m512d c) {
    const auto x = lanes<double>(a), y = lanes<double>(b);
    auto z = lanes<double>(c);
    for (size_t k = 0; k < z.size(); ++k) z[k] = std::fma(-x[k], y[k], z[k]);
    return vector_of<__m512d>(z);
}

// ---- conversions ----

inline __m512d _mm512_cvtepi64_pd(__m512i a) { return converted<__m512d, double, int64_t>(a); }
inline __m512d _mm512_cvtepu64_pd(__m512i a) { return converted<__m512d, double, uint64_t>(a); }
inline __m512i _mm512_cvtpd_epu64(__m512d a) {
    auto x = lanes<double>(a);
    std::array<uint64_t, 8> y;
    for (size_t k = 0; k < 8; ++k) {
        const double rounded = std::nearbyint(x[k]);
        // All values out of the range of an unsigned number become the largest one.
        y[k] = rounded >= 0 && rounded < 18446744073709551616.0 ? static_cast<uint64_t>(rounded) : UINT64_MAX;
    }
    return vector_of<__m512i>(y);
}
inline __m256 _mm512_cvtpd_ps(__m512d a) { return converted<__m256, float, double>(a); }
inline __m512i _mm512_cvtepu32_epi64(__m256i a) { return converted<__m512i, uint64_t, uint32_t>(a); }
inline __m256i _mm512_cvtepi64_epi32(__m512i a) { return converted<__m256i, uint32_t, uint64_t>(a); }
inline __m128i _mm512_cvtepi64_epi16(__m512i a) { return converted<__m128i, uint16_t, uint64_t>(a); }
inline __m256i _mm512_cvtepi16_epi8(__m512i a) { return converted<__m256i, uint8_t, uint16_t>(a); }

// ---- places of lanes ----

inline __m512i _mm512_shuffle_epi8(__m512i a, __m512i b) {
    return by_quarters(a, b, [](__m128i x, __m128i y) { return _mm_shuffle_epi8(x, y); });
}
inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
    return by_quarters(a, b, [](__m128i x, __m128i y) { return _mm_unpacklo_epi64(x, y); });
}
inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
    return by_quarters(a, b, [](__m128i x, __m128i y) { return _mm_unpackhi_epi64(x, y); });
}
inline __m512i _mm512_packus_epi32(__m512i a, __m512i b) {
    return by_quarters(a, b, [](__m128i x, __m128i y) { return _mm_packus_epi32(x, y); });
}
inline __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int places) {
    const auto x = lanes<float>(a), y = lanes<float>(b);
    std::array<float, 16> found;
    for (int k = 0; k < 16; ++k) {
        const int place = (k & ~3) + (places >> 2 * (k & 3) & 3);
        std::memcpy(&found[k], (k & 3) < 2 ? &x[place] : &y[place], sizeof(float));
    }
    return vector_of<__m512>(found);
}
inline __m512i _mm512_permutexvar_epi8(__m512i at, __m512i a) { return permuted<uint8_t, uint8_t>(at, a); }
inline __m512i _mm512_permutexvar_epi32(__m512i at, __m512i a) { return permuted<uint32_t, uint32_t>(at, a); }
inline __m512i _mm512_permutexvar_epi64(__m512i at, __m512i a) { return permuted<uint64_t, uint64_t>(at, a); }
inline __m512i _mm512_permutex2var_epi8(__m512i a, __m512i at, __m512i b) { return permuted<uint8_t, uint8_t>(a, at, b); }
inline __m512i _mm512_permutex2var_epi32(__m512i a, __m512i at, __m512i b) {
    return permuted<uint32_t, uint32_t>(a, at, b);
}
inline __m512i _mm512_permutex2var_epi64(__m512i a, __m512i at, __m512i b) {
    return permuted<uint64_t, uint64_t>(a, at, b);
}
inline __m512d _mm512_permutex2var_pd(__m512d a, __m512i at, __m512d b) { return permuted<double, uint64_t>(a, at, b); }
inline __m512d _mm512_mask_permutexvar_pd(__m512d from, __mmask8 mask, __m512i at, __m512d a) {
    return blend<double>(mask, from, permuted<double, uint64_t>(at, a));
}
// Each byte of the result is eight bits of the word, starting at the bit given by the byte of `at`.
inline __m512i _mm512_multishift_epi64_epi8(__m512i at, __m512i words) {
    const auto from = lanes<uint8_t>(at);
    const auto x = lanes<uint64_t>(words);
    std::array<uint8_t, 64> found;
    for (size_t k = 0; k < 64; ++k) {
        const unsigned n = from[k] & 63;
        found[k] = static_cast<uint8_t>(x[k / 8] >> n | (n ? x[k / 8] << (64 - n) : 0));
    }
    return vector_of<__m512i>(found);
}

// ---- masks ----

inline __mmask16 _knot_mask16(__mmask16 a) { return static_cast<__mmask16>(~a); }
inline __mmask64 _kandn_mask64(__mmask64 a, __mmask64 b) { return ~a & b; }
inline __mmask64 _mm512_movepi8_mask(__m512i a) { return which<int8_t>(a, __m512i{}, LESS); }
inline __mmask16 _mm512_movepi32_mask(__m512i a) { return static_cast<__mmask16>(which<int32_t>(a, __m512i{}, LESS)); }
inline __mmask8 _mm512_movepi64_mask(__m512i a) { return static_cast<__mmask8>(which<int64_t>(a, __m512i{}, LESS)); }

#define PGO_COMPARISON(NAME, VECTOR, MASK, LANE, HOW) \
    inline MASK NAME##_mask(VECTOR a, VECTOR b) { return static_cast<MASK>(which<LANE>(a, b, HOW)); }
#define PGO_MASKED_COMPARISON(NAME, MASKED, VECTOR, MASK, LANE, HOW) \
    inline MASK MASKED##_mask(MASK mask, VECTOR a, VECTOR b) { return static_cast<MASK>(mask & which<LANE>(a, b, HOW)); }
PGO_COMPARISON(_mm512_cmpeq_epi8, __m512i, __mmask64, int8_t, EQUAL)
PGO_COMPARISON(_mm512_cmplt_epi8, __m512i, __mmask64, int8_t, LESS)
PGO_COMPARISON(_mm512_cmplt_epu8, __m512i, __mmask64, uint8_t, LESS)
PGO_COMPARISON(_mm512_cmple_epu8, __m512i, __mmask64, uint8_t, LESS_OR_EQUAL)
PGO_COMPARISON(_mm512_cmpgt_epu8, __m512i, __mmask64, uint8_t, GREATER)
PGO_COMPARISON(_mm512_cmpge_epu8, __m512i, __mmask64, uint8_t, GREATER_OR_EQUAL)
PGO_COMPARISON(_mm512_cmpgt_epu16, __m512i, __mmask32, uint16_t, GREATER)
PGO_COMPARISON(_mm512_cmpeq_epi32, __m512i, __mmask16, int32_t, EQUAL)
PGO_COMPARISON(_mm512_cmplt_epu32, __m512i, __mmask16, uint32_t, LESS)
PGO_COMPARISON(_mm512_cmpgt_epu32, __m512i, __mmask16, uint32_t, GREATER)
PGO_COMPARISON(_mm512_cmpge_epu32, __m512i, __mmask16, uint32_t, GREATER_OR_EQUAL)
PGO_COMPARISON(_mm256_cmpgt_epu32, __m256i, __mmask8, uint32_t, GREATER)
PGO_COMPARISON(_mm512_cmpeq_epi64, __m512i, __mmask8, int64_t, EQUAL)
PGO_COMPARISON(_mm512_cmplt_epi64, __m512i, __mmask8, int64_t, LESS)
PGO_COMPARISON(_mm512_cmpgt_epi64, __m512i, __mmask8, int64_t, GREATER)
PGO_COMPARISON(_mm512_cmplt_epu64, __m512i, __mmask8, uint64_t, LESS)
PGO_COMPARISON(_mm512_cmpgt_epu64, __m512i, __mmask8, uint64_t, GREATER)
PGO_COMPARISON(_mm512_cmpneq_epu64, __m512i, __mmask8, uint64_t, OTHER)
PGO_COMPARISON(_mm_test_epi8, __m128i, __mmask16, uint8_t, BITS_IN_BOTH)
PGO_COMPARISON(_mm_test_epi16, __m128i, __mmask8, uint16_t, BITS_IN_BOTH)
PGO_COMPARISON(_mm256_test_epi32, __m256i, __mmask8, uint32_t, BITS_IN_BOTH)
PGO_COMPARISON(_mm256_testn_epi32, __m256i, __mmask8, uint32_t, NO_BITS_IN_BOTH)
PGO_COMPARISON(_mm512_test_epi8, __m512i, __mmask64, uint8_t, BITS_IN_BOTH)
PGO_COMPARISON(_mm512_test_epi32, __m512i, __mmask16, uint32_t, BITS_IN_BOTH)
PGO_COMPARISON(_mm512_testn_epi32, __m512i, __mmask16, uint32_t, NO_BITS_IN_BOTH)
PGO_COMPARISON(_mm512_test_epi64, __m512i, __mmask8, uint64_t, BITS_IN_BOTH)
PGO_MASKED_COMPARISON(_mm512_cmpeq_epi8, _mm512_mask_cmpeq_epi8, __m512i, __mmask64, int8_t, EQUAL)
PGO_MASKED_COMPARISON(_mm512_cmpneq_epi8, _mm512_mask_cmpneq_epi8, __m512i, __mmask64, int8_t, OTHER)
PGO_MASKED_COMPARISON(_mm512_cmplt_epu64, _mm512_mask_cmplt_epu64, __m512i, __mmask8, uint64_t, LESS)
PGO_MASKED_COMPARISON(_mm512_cmpgt_epu64, _mm512_mask_cmpgt_epu64, __m512i, __mmask8, uint64_t, GREATER)
PGO_MASKED_COMPARISON(_mm512_test_epi32, _mm512_mask_test_epi32, __m512i, __mmask16, uint32_t, BITS_IN_BOTH)

// ---- some lanes of the result ----

inline __m512i _mm512_mask_mov_epi8(__m512i from, __mmask64 mask, __m512i a) { return blend<uint8_t>(mask, from, a); }
inline __m512i _mm512_maskz_mov_epi8(__mmask64 mask, __m512i a) { return blend<uint8_t>(mask, __m512i{}, a); }
inline __m512i _mm512_maskz_mov_epi64(__mmask8 mask, __m512i a) { return blend<uint64_t>(mask, __m512i{}, a); }
inline __m512i _mm512_maskz_set1_epi8(__mmask64 mask, int x) {
    return blend<uint8_t>(mask, __m512i{}, _mm512_set1_epi8(x));
}
inline __m512i _mm512_maskz_sub_epi8(__mmask64 mask, __m512i a, __m512i b) {
    return blend<uint8_t>(mask, __m512i{}, _mm512_sub_epi8(a, b));
}
inline __m512i _mm512_mask_add_epi64(__m512i from, __mmask8 mask, __m512i a, __m512i b) {
    return blend<uint64_t>(mask, from, _mm512_add_epi64(a, b));
}
inline __m512i _mm512_mask_sub_epi64(__m512i from, __mmask8 mask, __m512i a, __m512i b) {
    return blend<uint64_t>(mask, from, _mm512_sub_epi64(a, b));
}
inline __m512i _mm512_mask_sub_epi32(__m512i from, __mmask16 mask, __m512i a, __m512i b) {
    return blend<uint32_t>(mask, from, _mm512_sub_epi32(a, b));
}
inline __m512i _mm512_mask_max_epi64(__m512i from, __mmask8 mask, __m512i a, __m512i b) {
    return blend<uint64_t>(mask, from, each<int64_t>(a, b, LARGER));
}
inline __m512i _mm512_mask_min_epu32(__m512i from, __mmask16 mask, __m512i a, __m512i b) {
    return blend<uint32_t>(mask, from, each<uint32_t>(a, b, SMALLER));
}
inline __m512i _mm512_mask_max_epu32(__m512i from, __mmask16 mask, __m512i a, __m512i b) {
    return blend<uint32_t>(mask, from, each<uint32_t>(a, b, LARGER));
}
inline __m512d _mm512_mask_xor_pd(__m512d from, __mmask8 mask, __m512d a, __m512d b) {
    return blend<double>(mask, from, each<uint64_t>(a, b, [](auto x, auto y) { return x ^ y; }));
}
inline __m512i _mm512_maskz_compress_epi64(__mmask8 mask, __m512i a) { return compressed<uint64_t>(mask, a); }
inline __m512i _mm512_maskz_expand_epi64(__mmask8 mask, __m512i a) { return expanded<uint64_t>(mask, a); }
inline __m256i _mm256_maskz_expand_epi32(__mmask8 mask, __m256i a) { return expanded<uint32_t>(mask, a); }
inline __m128i _mm_maskz_expand_epi16(__mmask8 mask, __m128i a) { return expanded<uint16_t>(mask, a); }
inline __m128i _mm_maskz_expand_epi8(__mmask16 mask, __m128i a) { return expanded<uint8_t>(mask, a); }
inline __m512i _mm512_maskz_loadu_epi8(__mmask64 mask, const void* p) { return loaded<uint8_t, __m512i>(mask, p); }
inline __m512i _mm512_maskz_loadu_epi64(__mmask8 mask, const void* p) { return loaded<uint64_t, __m512i>(mask, p); }
inline void _mm512_mask_storeu_epi8(void* p, __mmask64 mask, __m512i a) { stored<uint8_t>(p, mask, a); }
inline void _mm512_mask_storeu_epi64(void* p, __mmask8 mask, __m512i a) { stored<uint64_t>(p, mask, a); }
inline void _mm256_mask_storeu_epi32(void* p, __mmask8 mask, __m256i a) { stored<uint32_t>(p, mask, a); }
inline void _mm_mask_storeu_epi16(void* p, __mmask8 mask, __m128i a) { stored<uint16_t>(p, mask, a); }
inline void _mm_mask_storeu_epi8(void* p, __mmask16 mask, __m128i a) { stored<uint8_t>(p, mask, a); }

}  // namespace pgo::avx512

#pragma GCC pop_options
