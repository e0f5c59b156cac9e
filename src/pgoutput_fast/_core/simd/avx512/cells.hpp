// For processors with AVX-512: cell statistics, the handling of missing cells, and bool. See simd/avx512/integers.hpp.
#pragma once
#include "simd/avx512/integers.hpp"

#ifdef PGO_AVX2
#include "simd/avx512/on.hpp"

namespace pgo::avx512 {

// Indexes of every second word in two registers of sixteen words, from the first or from the second word on.
struct Words {
    uint32_t of[16];
};
constexpr Words every_second(uint32_t first) {
    Words w{};
    for (uint32_t k = 0; k < 16; ++k) w.of[k] = 2 * k + first;
    return w;
}
inline constexpr Words EVEN_WORDS = every_second(0), ODD_WORDS = every_second(1);

// ---- cell statistics --------------------------------------------------------------------------------------------

// Like avx2::extent, for sixteen cells at a time.
inline size_t extent(const Cell* cells, size_t n, Extent* out) noexcept {
    const __m512i none = _mm512_setzero_si512(), all = _mm512_set1_epi32(-1);
    const __m512i evens = load_full(EVEN_WORDS.of), odds = load_full(ODD_WORDS.of);
    __m512i longest = none, end = none, total = none, shortest = all, first = all;
    __mmask16 missing = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i a = load_full(cells + i), b = load_full(cells + i + 8);
        const __m512i offset = _mm512_permutex2var_epi32(a, evens, b), length = _mm512_permutex2var_epi32(a, odds, b);
        const __mmask16 absent = _mm512_movepi32_mask(length);
        const __m512i size = _mm512_max_epi32(length, none);
        missing |= absent;
        shortest = _mm512_min_epu32(shortest, length);
        longest = _mm512_max_epi32(longest, size);
        total = _mm512_add_epi32(total, size);
        first = _mm512_mask_min_epu32(first, _knot_mask16(absent), first, offset);
        end = _mm512_mask_max_epu32(end, _knot_mask16(absent), end, _mm512_add_epi32(offset, size));
    }
    const uint32_t least = _mm512_reduce_min_epu32(shortest), most = _mm512_reduce_max_epu32(longest);
    const uint32_t begin = _mm512_reduce_min_epu32(first), behind = _mm512_reduce_max_epu32(end);
    if (missing) out->signs = -1;
    out->shortest = least < out->shortest ? least : out->shortest;
    out->longest = most > out->longest ? most : out->longest;
    out->first = begin < out->first ? begin : out->first;
    out->end = behind > out->end ? behind : out->end;
    out->total += static_cast<uint32_t>(_mm512_reduce_add_epi32(total));
    return i;
}

// ---- missing cells ----------------------------------------------------------------------------------------------

inline __mmask8 first_cells(size_t n) { return static_cast<__mmask8>((uint32_t{1} << (n < CELLS ? n : CELLS)) - 1); }

// Writes one bit for each of n cells: whether it is present. Returns the number of present cells. `out` receives whole
// bytes.
inline size_t presence_bits(const Cell* cells, size_t n, uint8_t* out) noexcept {
    size_t count = 0;
    for (size_t i = 0; i < n; i += CELLS) {
        const __mmask8 in_range = first_cells(n - i);
        const __m512i c = _mm512_maskz_loadu_epi64(in_range, cells + i);
        const __mmask8 present = static_cast<__mmask8>(in_range & ~_mm512_movepi64_mask(c));
        out[i / CELLS] = present;
        count += static_cast<size_t>(_mm_popcnt_u32(present));
    }
    return count;
}

// Copies the present ones of n cells, and returns their number. `out` must have space for n + CELLS - 1 cells.
inline size_t pick_present(const Cell* cells, size_t n, Cell* out) noexcept {
    size_t count = 0;
    for (size_t i = 0; i < n; i += CELLS) {
        const __mmask8 in_range = first_cells(n - i);
        const __m512i c = _mm512_maskz_loadu_epi64(in_range, cells + i);
        const __mmask8 present = static_cast<__mmask8>(in_range & ~_mm512_movepi64_mask(c));
        store_full(out + count, _mm512_maskz_compress_epi64(present, c));
        count += static_cast<size_t>(_mm_popcnt_u32(present));
    }
    return count;
}

// Writes a value of `width` bytes for each of n cells, and zero for a missing cell. It may read up to CELLS values past
// the last one.
template <size_t width>
void spread_values(const Cell* cells, size_t n, const uint8_t* values, uint8_t* out) noexcept {
    for (size_t i = 0; i < n; i += CELLS, out += width * CELLS) {
        const __mmask8 in_range = first_cells(n - i);
        const __m512i c = _mm512_maskz_loadu_epi64(in_range, cells + i);
        const __mmask8 present = static_cast<__mmask8>(in_range & ~_mm512_movepi64_mask(c));
        if (width == 1) {
            const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(values));
            _mm_mask_storeu_epi8(out, in_range, _mm_maskz_expand_epi8(present, eight));
        } else if (width == 2) {
            _mm_mask_storeu_epi16(out, in_range, _mm_maskz_expand_epi16(present, avx2::load(values)));
        } else if (width == 4) {
            _mm256_mask_storeu_epi32(out, in_range, _mm256_maskz_expand_epi32(present, avx2::load_wide(values)));
        } else if (width == 8) {
            _mm512_mask_storeu_epi64(out, in_range, _mm512_maskz_expand_epi64(present, load_full(values)));
        } else {
            static_assert(width <= 8 || width == 16);
            const uint32_t words = _pdep_u32(present, 0x5555) * 3, stored = _pdep_u32(in_range, 0x5555) * 3;
            const size_t low = 8 * static_cast<size_t>(_mm_popcnt_u32(words & 0xff));
            _mm512_mask_storeu_epi64(out, static_cast<__mmask8>(stored),
                                     _mm512_maskz_expand_epi64(static_cast<__mmask8>(words), load_full(values)));
            const __m512i high = load_full(values + low);
            _mm512_mask_storeu_epi64(out + 64, static_cast<__mmask8>(stored >> 8),
                                     _mm512_maskz_expand_epi64(static_cast<__mmask8>(words >> 8), high));
        }
        values += width * static_cast<size_t>(_mm_popcnt_u32(present));
    }
}

// ---- bool -------------------------------------------------------------------------------------------------------

using avx2::binary_bools;
using avx2::split_lists;
using avx2::split_vectors;
using avx2::split_multiranges;
using avx2::split_ranges;
using avx2::split_records;

inline bool bools(Source source, const Cell* cells, size_t n, uint8_t* __restrict out, const Column& column) noexcept {
    if (column.statistics.longest > 1) return false;
    for (size_t i = 0; i < n; ++i) out[i] = source.base[cells[i].offset];
    __mmask64 bad = 0;
    for (size_t i = 0; i < n; i += 64) {
        const __mmask64 in_range = _bzhi_u64(~uint64_t{0}, static_cast<uint32_t>(n - i < 64 ? n - i : 64));
        const __m512i x = _mm512_maskz_loadu_epi8(in_range, out + i);
        const __mmask64 yes = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8('t'));
        const __mmask64 no = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8('f'));
        bad |= in_range & ~(yes | no);
        _mm512_mask_storeu_epi8(out + i, in_range, _mm512_maskz_set1_epi8(yes, 1));
    }
    return !bad;
}

}  // namespace pgo::avx512

#include "simd/avx512/off.hpp"
#endif
