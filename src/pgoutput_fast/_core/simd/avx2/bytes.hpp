// Values of any length for processors with AVX2; see simd/avx2/registers.hpp.
#pragma once
#include <cstdint>
#include <cstring>
#include "columns/column.hpp"
#include "columns/gather.hpp"
#include "simd/avx2/registers.hpp"

#ifdef PGO_AVX2
#include "simd/avx2/on.hpp"

namespace pgo::avx2 {

// ---- hexadecimal ------------------------------------------------------------------------------------------------

// All ones in lanes that hold 0-9 or a-f.
inline __m256i are_hex(__m256i c) {
    const __m256i digit = _mm256_sub_epi8(c, _mm256_set1_epi8('0')), letter = _mm256_sub_epi8(c, _mm256_set1_epi8('a'));
    return _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_min_epu8(digit, _mm256_set1_epi8(9)), digit),
                           _mm256_cmpeq_epi8(_mm256_min_epu8(letter, _mm256_set1_epi8(5)), letter));
}
// Copies UUIDs that are text and stay text, and checks their form. `out` must have space for 36 n bytes and SLACK.
inline bool uuids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets, const Column&) noexcept {
    const __m256i dashes = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1,
                                            0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i dash = _mm256_set1_epi8('-');
    __m256i good = _mm256_set1_epi8(-1);
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint8_t* p = source.base + (cells[i].offset & present);
        const __m256i x = load_wide(p);
        uint32_t last;
        std::memcpy(&last, p + 32, sizeof last);
        const __m256i fits = _mm256_and_si256(_mm256_blendv_epi8(are_hex(x), _mm256_cmpeq_epi8(x, dash), dashes),
                                              are_hex(_mm256_set1_epi32(static_cast<int>(last))));
        good = _mm256_and_si256(good, _mm256_or_si256(fits, _mm256_set1_epi32(static_cast<int>(~present))));
        bad |= (cells[i].length != 36) & present;
        store_wide(out, x);
        std::memcpy(out + 32, &last, sizeof last);
        out += 36 & present;
        at += static_cast<int32_t>(36 & present);
        offsets[i + 1] = at;
    }
    return !bad && _mm256_testc_si256(good, _mm256_set1_epi8(-1));
}

// Prints UUIDs of 16 bytes each. `out` must have space for 36 n bytes and SLACK.
inline bool binary_uuids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                         const Column&) noexcept {
    const __m128i letters = load(reinterpret_cast<const uint8_t*>("0123456789abcdef")), low = _mm_set1_epi8(15);
    const __m128i first = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, 8, 9, 10, 11, -1, 12, 13);
    const __m128i second = _mm_setr_epi8(0, 1, -1, 2, 3, 4, 5, -1, 6, 7, 8, 9, 10, 11, 12, 13);
    const __m128i first_dashes = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, '-', 0, 0, 0, 0, '-', 0, 0);
    const __m128i second_dashes = _mm_setr_epi8(0, 0, '-', 0, 0, 0, 0, '-', 0, 0, 0, 0, 0, 0, 0, 0);
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const __m128i x = load(source.base + (cells[i].offset & present));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(x, 4), low);
        const __m128i left = _mm_shuffle_epi8(letters, _mm_unpacklo_epi8(high, _mm_and_si128(x, low)));
        const __m128i right = _mm_shuffle_epi8(letters, _mm_unpackhi_epi8(high, _mm_and_si128(x, low)));
        const __m128i middle = _mm_alignr_epi8(right, left, 14);
        bad |= (cells[i].length != 16) & present;
        store(out, _mm_or_si128(_mm_shuffle_epi8(left, first), first_dashes));
        store(out + 16, _mm_or_si128(_mm_shuffle_epi8(middle, second), second_dashes));
        const int end = _mm_extract_epi32(right, 3);
        std::memcpy(out + 32, &end, sizeof end);
        out += 36 & present;
        at += static_cast<int32_t>(36 & present);
        offsets[i + 1] = at;
    }
    return !bad;
}

// The values of hexadecimal digits. Other characters give more than 15.
inline __m256i hex_values(__m256i c) {
    // '0' to '9' become 0xf6 to 0xff, and then 0xf0 to 0xf9; no other character exceeds 0xef.
    const __m256i high = _mm256_add_epi8(c, _mm256_set1_epi8(static_cast<char>(0xff - '9')));
    const __m256i decimal = _mm256_subs_epu8(high, _mm256_set1_epi8(6));
    const __m256i letter = _mm256_adds_epu8(_mm256_sub_epi8(c, _mm256_set1_epi8('a')), _mm256_set1_epi8(10));
    return _mm256_min_epu8(_mm256_sub_epi8(decimal, _mm256_set1_epi8(static_cast<char>(0xf0))), letter);
}
// Joins the values of 32 digits to 16 bytes.
inline __m128i join_values(__m256i values) {
    const __m256i pairs = _mm256_maddubs_epi16(values, _mm256_set1_epi16(0x0110));
    return _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

// Reads bytea in hex format. `out` must have space for half of the cells' bytes and SLACK.
inline bool byteas(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets, const Column&) noexcept {
    __m256i seen = _mm256_setzero_si256();
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const int32_t length = cells[i].length;
        const uint32_t present = presence(length);
        const uint8_t* p = source.base + (cells[i].offset & present);
        uint16_t mark;
        std::memcpy(&mark, p, sizeof mark);
        int32_t digits = length > 2 ? length - 2 : 0;
        bad |= static_cast<uint32_t>((mark ^ 0x785c) | (length & 1) | (length ^ (digits + 2))) & present;
        uint8_t* to = out;
        out += digits / 2;
        at += digits / 2;
        offsets[i + 1] = at;
        __m256i x = hex_values(load_wide(p + 2));
        for (; __builtin_expect(digits > 32, 0); digits -= 32) {
            store(to, join_values(x));
            seen = _mm256_or_si256(seen, x);
            p += 32;
            to += 16;
            x = hex_values(load_wide(p + 2));
        }
        store(to, join_values(x));
        seen = _mm256_or_si256(seen, _mm256_and_si256(x, first_lanes_wide(static_cast<uint32_t>(digits))));
    }
    return !bad && _mm256_testz_si256(seen, _mm256_set1_epi8(static_cast<char>(0xf0)));
}

// ---- text -------------------------------------------------------------------------------------------------------

// Like gather_cells, for cells with readable bytes after them. `out` must have space for all copied bytes and SLACK.
// Values are copied in pieces of one or two vectors. An unnecessary vector costs less than a loop with an unpredictable
// end.
template <uint32_t skip, int vectors>
Gathered gather_pieces(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets) noexcept {
    constexpr uint32_t piece = 32 * vectors;
    __m256i seen = _mm256_setzero_si256();
    Gathered found;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint32_t size = (static_cast<uint32_t>(cells[i].length) - skip) & present;
        const uint8_t* p = source.base + (cells[i].offset & present);
        if (skip) found.others |= (*p ^ uint32_t{1}) & present;
        p += skip & present;
        uint8_t* to = out;
        uint32_t rest = size;
        for (; rest > piece; rest -= piece, p += piece, to += piece) {
            for (int k = 0; k < vectors; ++k) {
                const __m256i x = load_wide(p + 32 * k);
                store_wide(to + 32 * k, x);
                seen = _mm256_or_si256(seen, x);
            }
        }
        for (int k = 0; k < vectors; ++k) {
            const __m256i x = load_wide(p + 32 * k);
            store_wide(to + 32 * k, x);
            // Only the bytes of the last piece that belong to the value count.
            seen = _mm256_or_si256(seen, _mm256_and_si256(x, load_wide(MASKS.first + 64 - rest + 32 * k)));
        }
        out += size;
        at += static_cast<int32_t>(size);
        offsets[i + 1] = at;
    }
    found.ascii = !_mm256_movemask_epi8(seen);
    return found;
}

template <uint32_t skip>
Gathered gather(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                const Column& column) noexcept {
    const bool two = column.statistics.longest > 32;
    return (two ? gather_pieces<skip, 2> : gather_pieces<skip, 1>)(source, cells, n, out, offsets);
}

}  // namespace pgo::avx2

#include "simd/avx2/off.hpp"
#endif
