// For processors with AVX2: cell statistics, the handling of missing cells, and bool; see simd/avx2/registers.hpp.
#pragma once
#include <cstring>
#include "columns/column.hpp"
#include "simd/avx2/registers.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// ---- cell statistics --------------------------------------------------------------------------------------------

// Computes statistics of the cells in groups of eight and returns the number of cells processed. The sum of the lengths
// is less than 2^32, because no source is larger.
inline size_t extent(const Cell* cells, size_t n, Extent* out) noexcept {
    const __m256i none = _mm256_setzero_si256();
    __m256i signs = none, longest = none, end = none, total = none;
    __m256i shortest = _mm256_set1_epi32(-1), first = shortest;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 a = _mm256_loadu_ps(reinterpret_cast<const float*>(cells + i));
        const __m256 b = _mm256_loadu_ps(reinterpret_cast<const float*>(cells + i + 4));
        const __m256i offset = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        const __m256i length = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
        const __m256i size = _mm256_max_epi32(length, none);
        signs = _mm256_or_si256(signs, length);
        shortest = _mm256_min_epu32(shortest, length);
        longest = _mm256_max_epi32(longest, length);
        total = _mm256_add_epi32(total, size);
        const __m256i absent = _mm256_srai_epi32(length, 31);
        first = _mm256_min_epu32(first, _mm256_or_si256(offset, absent));
        end = _mm256_max_epu32(end, _mm256_andnot_si256(absent, _mm256_add_epi32(offset, size)));
    }
    alignas(32) uint32_t lanes[6][8];
    const __m256i all[6] = {signs, shortest, longest, total, first, end};
    for (int k = 0; k < 6; ++k) _mm256_store_si256(reinterpret_cast<__m256i*>(lanes[k]), all[k]);
    for (int k = 0; k < 8; ++k) {
        out->signs |= static_cast<int32_t>(lanes[0][k]);
        out->shortest = lanes[1][k] < out->shortest ? lanes[1][k] : out->shortest;
        out->longest = lanes[2][k] > out->longest ? lanes[2][k] : out->longest;
        out->total += lanes[3][k];
        out->first = lanes[4][k] < out->first ? lanes[4][k] : out->first;
        out->end = lanes[5][k] > out->end ? lanes[5][k] : out->end;
    }
    return i;
}

// ---- missing cells ----------------------------------------------------------------------------------------------

// The missing cells of four, one bit per cell. A length is the high half of a cell, so its sign is the cell's sign.
inline uint32_t missing_of_four(__m256i cells) {
    return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(cells)));
}
inline __m256i load_cells(const Cell* cells) { return load_wide(reinterpret_cast<const uint8_t*>(cells)); }
inline uint32_t present_of_eight(const Cell* cells) {
    return 255 ^ (missing_of_four(load_cells(cells)) | missing_of_four(load_cells(cells + 4)) << 4);
}

// Writes one bit for each of n cells: whether it is present. Returns the number of present cells. `out` receives whole
// bytes.
inline size_t presence_bits(const Cell* cells, size_t n, uint8_t* out) noexcept {
    size_t count = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint32_t present = present_of_eight(cells + i);
        out[i / 8] = static_cast<uint8_t>(present);
        count += static_cast<size_t>(_mm_popcnt_u32(present));
    }
    uint32_t last = 0;
    for (size_t k = i; k < n; ++k) last |= uint32_t{cells[k].length >= 0} << (k - i);
    if (i < n) out[i / 8] = static_cast<uint8_t>(last);
    return count + static_cast<size_t>(_mm_popcnt_u32(last));
}

// Copies the present ones of n cells, and returns their number. `out` must have space for n + 3 cells.
inline size_t pick_present(const Cell* cells, size_t n, Cell* out) noexcept {
    size_t count = 0, i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m256i four = load_cells(cells + i);
        const uint32_t present = 15 ^ missing_of_four(four);
        const __m256i words = load_wide(reinterpret_cast<const uint8_t*>(PICKS.of[present]));
        store_wide(reinterpret_cast<uint8_t*>(out + count), _mm256_permutevar8x32_epi32(four, words));
        count += static_cast<size_t>(_mm_popcnt_u32(present));
    }
    for (; i < n; ++i) {
        out[count] = cells[i];
        count += cells[i].length >= 0;
    }
    return count;
}

// Writes eight values: those of `present` are taken from `values`, the others become zero.
template <size_t width>
inline void spread_eight(uint32_t present, const uint8_t* values, uint8_t* out) {
    const __m128i ranks = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(RANKS.of[present]));
    if (width == 1) {
        const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(values));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(x, ranks));
    } else if (width == 2) {
        const __m128i doubled = _mm_adds_epu8(ranks, ranks);
        const __m128i bytes = _mm_or_si128(_mm_unpacklo_epi8(doubled, doubled), _mm_set1_epi16(0x0100));
        store(out, _mm_shuffle_epi8(load(values), bytes));
    } else {
        static_assert(width <= 4);
        const __m256i words = _mm256_cvtepu8_epi32(ranks);
        const __m256i x = _mm256_permutevar8x32_epi32(load_wide(values), words);
        store_wide(out, _mm256_and_si256(x, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x80), words)));
    }
}
inline void spread_four_long(uint32_t present, const uint8_t* values, uint8_t* out) {
    uint32_t four;
    std::memcpy(&four, RANKS.of[present], sizeof four);
    const __m256i ranks = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(static_cast<int>(four)));
    const __m256i low = _mm256_add_epi64(ranks, ranks);
    const __m256i high = _mm256_or_si256(_mm256_slli_epi64(low, 32), _mm256_set1_epi64x(int64_t{1} << 32));
    const __m256i x = _mm256_permutevar8x32_epi32(load_wide(values), _mm256_or_si256(low, high));
    store_wide(out, _mm256_and_si256(x, _mm256_cmpgt_epi64(_mm256_set1_epi64x(0x80), ranks)));
}

// Writes a value of `width` bytes for each of n cells, and zero for a missing cell. It may read up to eight values past
// the last one.
template <size_t width>
void spread_values(const Cell* cells, size_t n, const uint8_t* values, uint8_t* out) noexcept {
    size_t i = 0;
    for (; width <= 8 && i + 8 <= n; i += 8, out += 8 * width) {
        const uint32_t present = present_of_eight(cells + i);
        if constexpr (width == 8) {
            spread_four_long(present & 15, values, out);
            values += 8 * _mm_popcnt_u32(present & 15);
            spread_four_long(present >> 4, values, out + 32);
            values += 8 * _mm_popcnt_u32(present >> 4);
        } else if constexpr (width < 8) {
            spread_eight<width>(present, values, out);
            values += width * static_cast<size_t>(_mm_popcnt_u32(present));
        }
    }
    for (; i < n; ++i, out += width) {
        uint8_t value[width];
        const uint8_t kept = static_cast<uint8_t>(cells[i].length >= 0 ? 0xff : 0);
        for (size_t k = 0; k < width; ++k) value[k] = static_cast<uint8_t>(values[k] & kept);
        std::memcpy(out, value, width);
        values += kept ? width : 0;
    }
}

// ---- bool -------------------------------------------------------------------------------------------------------

inline bool bools(Source source, const Cell* cells, size_t n, uint8_t* __restrict out, const Column& column) noexcept {
    if (column.statistics.longest > 1) return false;
    uint32_t bad = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t c = source.base[cells[i].offset] ^ 'f';
        bad |= c & ~uint32_t{'t' ^ 'f'};  // 't' and 'f' differ in bits 4 and 1 only
        bad |= (c >> 4 ^ c >> 1) & 1;     // and never in just one of them
        out[i] = c >> 4;
    }
    return !bad;
}

inline bool binary_bools(Source source, const Cell* cells, size_t n, uint8_t* __restrict out,
                         const Column& column) noexcept {
    if (column.statistics.longest > 1) return false;
    uint32_t all = 0;
    for (size_t i = 0; i < n; ++i) all |= out[i] = source.base[cells[i].offset];
    return all <= 1;
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
