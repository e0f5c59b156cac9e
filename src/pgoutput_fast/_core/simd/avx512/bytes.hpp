// Values of any length for processors with AVX-512; see simd/avx512/integers.hpp.
#pragma once
#include "simd/avx2/networks.hpp"
#include "simd/avx2/numerics.hpp"
#include "simd/avx2/tids.hpp"
#include "simd/avx512/integers.hpp"

#ifdef PGO_AVX2
#include "simd/avx512/on.hpp"

namespace pgo::avx512 {

// A table with one byte per ASCII character.
struct Characters {
    uint8_t of[128];
};
inline __m512i classify(const Characters& characters, __m512i x) {
    return _mm512_permutex2var_epi8(load_full(characters.of), x, load_full(characters.of + 64));
}
inline __mmask64 first_bytes(uint64_t n) { return _bzhi_u64(~uint64_t{0}, static_cast<uint32_t>(n)); }  // n < 256

// Writes the offsets of n values of one length. A missing cell has length zero.
template <bool missing>
inline void fixed_offsets(const Cell* cells, size_t n, int32_t width, int32_t* offsets) noexcept {
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        at += missing ? width & static_cast<int32_t>(pgo::presence(cells[i].length)) : width;
        offsets[i + 1] = at;
    }
}

// ---- hexadecimal ------------------------------------------------------------------------------------------------

constexpr uint8_t IS_HEX = 1, IS_DASH = 2, NO_DIGIT = 0x80;
constexpr Characters uuid_characters() {
    Characters c{};
    for (int k = 0; k < 10; ++k) c.of['0' + k] = IS_HEX;
    for (int k = 0; k < 6; ++k) c.of['a' + k] = IS_HEX;
    c.of['-'] = IS_DASH;
    return c;
}
constexpr Characters hex_characters() {
    Characters c{};
    for (uint8_t& digit : c.of) digit = NO_DIGIT;
    for (int k = 0; k < 10; ++k) c.of['0' + k] = static_cast<uint8_t>(k);
    for (int k = 0; k < 6; ++k) c.of['a' + k] = static_cast<uint8_t>(10 + k);
    return c;
}
inline constexpr Characters UUID_CHARACTERS = uuid_characters(), HEX_CHARACTERS = hex_characters();

constexpr uint64_t UUID_LANES = (uint64_t{1} << 36) - 1;
constexpr uint64_t UUID_DASHES = uint64_t{1} << 8 | uint64_t{1} << 13 | uint64_t{1} << 18 | uint64_t{1} << 23;

template <bool missing>
bool copy_uuids(Source source, const Cell* cells, size_t n, uint8_t* out) noexcept {
    const __m512i digits = _mm512_maskz_set1_epi8(UUID_LANES, IS_HEX);
    const __m512i wanted = _mm512_mask_mov_epi8(digits, UUID_DASHES, _mm512_set1_epi8(IS_DASH));
    const __m512i high = _mm512_maskz_set1_epi8(UUID_LANES, static_cast<char>(0x80));
    __m512i bad = _mm512_setzero_si512();
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = missing ? pgo::presence(cells[i].length) : ~uint32_t{0};
        const __m512i x = load_full(source.base + (cells[i].offset & present));
        const __m512i seen = classify(UUID_CHARACTERS, x);
        store_full(out, x);
        // A byte is wrong if its class is not the expected one, or if it is not ASCII.
        __m512i wrong = _mm512_ternarylogic_epi64(_mm512_andnot_si512(seen, wanted), x, high, 0xf8);
        if (missing) wrong = _mm512_and_si512(wrong, _mm512_set1_epi32(static_cast<int>(present)));
        bad = _mm512_or_si512(bad, wrong);
        out += 36 & present;
    }
    return !_mm512_test_epi8_mask(bad, bad);
}

// Copies UUIDs that are text and stay text. `out` must have space for 36 n bytes and SLACK.
inline bool uuids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                  const Column& column) noexcept {
    if (column.statistics.longest != 36 || column.statistics.shortest != 36) return false;
    if (!(column.statistics.missing ? copy_uuids<true> : copy_uuids<false>)(source, cells, n, out)) return false;
    (column.statistics.missing ? fixed_offsets<true> : fixed_offsets<false>)(cells, n, 36, offsets);
    return true;
}

// For each character of a UUID's text: the UUID byte that it comes from, and the bit offset of its four bits in a word
// of eight such bytes.
struct UuidPrint {
    Bytes byte, bit;
    constexpr UuidPrint() : byte(), bit() {
        for (int k = 0, digit = 0; k < 64; ++k) {
            const bool is_digit = k < 36 && !(UUID_DASHES >> k & 1);
            byte.of[k] = static_cast<uint8_t>(is_digit ? digit / 2 : 0);
            bit.of[k] = static_cast<uint8_t>(8 * (k % 8) + (is_digit && digit % 2 == 0 ? 4 : 0));
            digit += is_digit;
        }
    }
};
inline constexpr UuidPrint UUID_PRINT{};

template <bool missing>
void print_uuids(Source source, const Cell* cells, size_t n, uint8_t* out) noexcept {
    const __m512i letters = _mm512_broadcast_i32x4(avx2::load(reinterpret_cast<const uint8_t*>("0123456789abcdef")));
    const __m512i byte = load_full(UUID_PRINT.byte.of), bit = load_full(UUID_PRINT.bit.of);
    const __m512i dash = _mm512_set1_epi8('-');
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = missing ? pgo::presence(cells[i].length) : ~uint32_t{0};
        const __m512i x = _mm512_castsi128_si512(avx2::load(source.base + (cells[i].offset & present)));
        const __m512i digits = _mm512_multishift_epi64_epi8(bit, _mm512_permutexvar_epi8(byte, x));
        // Only the lowest six bits of an index into 64 letters count. The sixteen letters are repeated four times, so
        // only the lowest four bits matter.
        store_full(out, _mm512_mask_mov_epi8(_mm512_permutexvar_epi8(digits, letters), UUID_DASHES, dash));
        out += 36 & present;
    }
}

// Prints UUIDs of 16 bytes each. `out` must have space for 36 n bytes and SLACK.
inline bool binary_uuids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                         const Column& column) noexcept {
    if (column.statistics.longest != 16 || column.statistics.shortest != 16) return false;
    (column.statistics.missing ? print_uuids<true> : print_uuids<false>)(source, cells, n, out);
    (column.statistics.missing ? fixed_offsets<true> : fixed_offsets<false>)(cells, n, 36, offsets);
    return true;
}

// Reads bytea in hex format, 64 digits at a time. `out` must have space for half of the cells' bytes and SLACK.
inline bool byteas(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                   const Column& column) noexcept {
    if (column.statistics.shortest < 2) return false;
    const __m512i join = _mm512_set1_epi16(0x0110);
    __m512i bad = _mm512_setzero_si512();
    uint32_t mismatch = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = pgo::presence(cells[i].length);
        const uint8_t* p = source.base + (cells[i].offset & present);
        uint16_t mark;
        std::memcpy(&mark, p, sizeof mark);
        const uint32_t length = static_cast<uint32_t>(cells[i].length) & present;
        mismatch |= ((length & 1) | (mark ^ 0x785c)) & present;
        uint32_t digits = length - (2 & present);
        const uint32_t size = digits / 2;
        p += 2;
        uint8_t* to = out;
        for (; __builtin_expect(digits > 64, 0); digits -= 64, p += 64, to += 32) {
            const __m512i x = load_full(p), values = classify(HEX_CHARACTERS, x);
            bad = _mm512_ternarylogic_epi64(bad, values, x, 0xfe);
            avx2::store_wide(to, _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(values, join)));
        }
        const __mmask64 in_range = first_bytes(digits);
        const __m512i x = _mm512_maskz_loadu_epi8(in_range, p);
        const __m512i values = _mm512_maskz_mov_epi8(in_range, classify(HEX_CHARACTERS, x));
        bad = _mm512_ternarylogic_epi64(bad, values, x, 0xfe);
        avx2::store_wide(to, _mm512_cvtepi16_epi8(_mm512_maddubs_epi16(values, join)));
        out += size;
        at += static_cast<int32_t>(size);
        offsets[i + 1] = at;
    }
    return !mismatch && !_mm512_movepi8_mask(bad);
}

// ---- text -------------------------------------------------------------------------------------------------------

inline bool all_ascii(const uint8_t* p, size_t n) noexcept {
    __m512i seen = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + 64 < n; i += 64) seen = _mm512_or_si512(seen, load_full(p + i));
    seen = _mm512_or_si512(seen, _mm512_maskz_loadu_epi8(first_bytes(n - i), p + i));
    return !_mm512_movepi8_mask(seen);
}

constexpr size_t ASCII_CELLS = 64;  // cells to copy before the copy is checked, while it is still in the cache

// Copies `pieces` pieces of `width` bytes for every value, and more only for longer ones. So no branch depends on the
// length of most values.
template <uint32_t skip, int width, int pieces, bool missing>
Gathered gather_pieces(const uint8_t* base, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets) noexcept {
    const int32_t start = offsets[0];
    uint8_t* const zero = out - start;
    uint64_t at = static_cast<uint32_t>(start);
    Gathered found;
    __m128i least = _mm_setzero_si128();  // continuation bytes are the least signed numbers
    for (size_t from = 0; from < n; from += ASCII_CELLS) {
        const size_t to = n - from < ASCII_CELLS ? n : from + ASCII_CELLS;
        const uint64_t before = at;
        for (size_t i = from; i < to; ++i) {
            uint64_t cell;
            std::memcpy(&cell, cells + i, sizeof cell);
            uint64_t size = cell >> 32, offset = cell & 0xffffffff;
            const uint64_t present = missing ? ~static_cast<uint64_t>(static_cast<int64_t>(cell) >> 63) : ~uint64_t{0};
            if (missing) {
                size = (size - skip) & present;
                offset = (offset + skip) & present;
                if (skip) found.others |= (base[offset - (skip & present)] ^ uint32_t{1}) & (present & 0xff);
            } else {
                size -= skip;
                offset += skip;
                if (skip) found.others |= base[offset - skip] ^ uint32_t{1};
            }
            const uint8_t* p = base + offset;
            __m128i first = avx2::load(p);
            if (missing) first = _mm_and_si128(first, _mm_set1_epi64x(static_cast<int64_t>(present)));
            least = _mm_min_epi8(least, first);
            uint8_t* q = zero + at;
            for (int k = 0; k < pieces; ++k) {
                if (width == 16) avx2::store(q + 16 * k, avx2::load(p + 16 * k));
                if (width == 32) avx2::store_wide(q + 32 * k, avx2::load_wide(p + 32 * k));
                if (width == 64) store_full(q + 64 * k, load_full(p + 64 * k));
            }
            for (uint64_t done = width * pieces; __builtin_expect(done < size, 0); done += 64)
                store_full(q + done, load_full(p + done));
            at += size;
            offsets[i + 1] = static_cast<int32_t>(at);
        }
        found.ascii &= all_ascii(zero + before, at - before);
    }
    found.whole = static_cast<int8_t>(_mm_cvtsi128_si32(least)) >= static_cast<int8_t>(0xc0);
    return found;
}

// Maximum number of 64-byte pieces that are copied for every value. More than one is copied only if this many pieces
// can be read after the last cell.
constexpr uint32_t MOST_PIECES = 4;

template <uint32_t skip, bool missing>
Gathered gather_as(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                   const Column& column) noexcept {
    const uint8_t* base = source.base;
    const uint32_t longest = column.statistics.longest;
    if (longest <= 16 + skip) return gather_pieces<skip, 16, 1, missing>(base, cells, n, out, offsets);
    if (longest <= 32 + skip) return gather_pieces<skip, 32, 1, missing>(base, cells, n, out, offsets);
    const size_t usual = column.statistics.total / n * 3 / 2;
    if (column.statistics.longest <= 64 + skip || usual <= 64 || column.statistics.bytes_after < 64 * MOST_PIECES)
        return gather_pieces<skip, 64, 1, missing>(base, cells, n, out, offsets);
    if (usual <= 128) return gather_pieces<skip, 64, 2, missing>(base, cells, n, out, offsets);
    if (usual <= 192) return gather_pieces<skip, 64, 3, missing>(base, cells, n, out, offsets);
    return gather_pieces<skip, 64, 4, missing>(base, cells, n, out, offsets);
}

// Like gather_cells, for cells with readable bytes after them. `out` must have space for all copied bytes and for
// MOST_PIECES more pieces.
template <uint32_t skip>
Gathered gather(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                const Column& column) noexcept {
    const auto chosen = column.statistics.missing ? gather_as<skip, true> : gather_as<skip, false>;
    return chosen(source, cells, n, out, offsets, column);
}

using avx2::binary_numerics;
using avx2::networks;
using avx2::tids;

// Copies numerics that stay text, and checks that they have the form that numeric_out prints. They may have at most 64
// characters. `out` must have space for the cells' bytes and SLACK.
inline bool numerics(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                     const Column& column) noexcept {
    if (column.statistics.longest > 64 || column.statistics.shortest == 0) return false;
    const __m512i zero = _mm512_set1_epi8('0'), nine = _mm512_set1_epi8(9);
    uint64_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = pgo::presence(cells[i].length);
        const uint32_t length = static_cast<uint32_t>(cells[i].length) & present;
        const uint64_t in_range = first_bytes(length);
        const __m512i x = _mm512_maskz_loadu_epi8(in_range, source.base + (cells[i].offset & present));
        store_full(out, x);
        const uint64_t digits = _mm512_cmple_epu8_mask(_mm512_sub_epi8(x, zero), nine);
        const uint64_t zeros = _mm512_cmpeq_epi8_mask(x, zero);
        const uint64_t points = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8('.'));
        const uint64_t minus = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8('-')) & 1;
        // Wrong: other characters, a second point, no digit at the beginning or at the end.
        uint64_t wrong = (digits | points | minus) ^ in_range;
        wrong |= _blsr_u64(points);
        wrong |= ~(digits >> minus) & 1;
        wrong |= ~(digits >> ((length - 1) & 63)) & 1;
        // Wrong: a leading zero before another digit, a zero with a sign.
        wrong |= zeros >> minus & digits >> minus >> 1 & 1;
        wrong |= minus & static_cast<uint64_t>(digits == zeros);
        bad |= present ? wrong : 0;
        out += length;
        at += static_cast<int32_t>(length);
        offsets[i + 1] = at;
    }
    return !bad;
}

// Like pgo::is_utf8, with one bit per byte for 64 bytes at a time. Text is valid only if continuation bytes are exactly
// at the required positions.
inline bool is_utf8(const uint8_t* p, size_t n) noexcept {
    uint64_t wrong = 0, due = 0;  // due: continuation bytes that a character of the last 64 bytes still needs
    uint64_t was_e0 = 0, was_ed = 0, was_f0 = 0, was_f4 = 0;  // whether the last byte limits the byte after it, and how
    for (size_t i = 0; i < n; i += 64) {
        const __m512i x = _mm512_maskz_loadu_epi8(n - i < 64 ? first_bytes(n - i) : ~uint64_t{0}, p + i);
        if (!_mm512_movepi8_mask(x)) {
            wrong |= due;
            due = was_e0 = was_ed = was_f0 = was_f4 = 0;
            continue;
        }
        const uint64_t continuing = _mm512_cmplt_epi8_mask(x, _mm512_set1_epi8(static_cast<char>(0xc0)));
        const uint64_t from_90 = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(static_cast<char>(0x90)));
        const uint64_t from_a0 = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(static_cast<char>(0xa0)));
        const uint64_t from_c0 = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(static_cast<char>(0xc0)));
        const uint64_t from_c2 = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(static_cast<char>(0xc2)));
        const uint64_t from_e0 = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(static_cast<char>(0xe0)));
        const uint64_t from_f0 = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(static_cast<char>(0xf0)));
        const uint64_t from_f5 = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(static_cast<char>(0xf5)));
        const uint64_t is_e0 = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(static_cast<char>(0xe0)));
        const uint64_t is_ed = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(static_cast<char>(0xed)));
        const uint64_t is_f0 = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(static_cast<char>(0xf0)));
        const uint64_t is_f4 = _mm512_cmpeq_epi8_mask(x, _mm512_set1_epi8(static_cast<char>(0xf4)));
        wrong |= (from_c0 ^ from_c2) | from_f5;
        wrong |= continuing ^ (from_c2 << 1 | from_e0 << 2 | from_f0 << 3 | due);
        due = from_c2 >> 63 | from_e0 >> 62 | from_f0 >> 61;
        // No overlong forms, no surrogates, nothing above U+10FFFF.
        wrong |= ((is_e0 << 1 | was_e0) & ~from_a0) | ((is_ed << 1 | was_ed) & from_a0);
        wrong |= ((is_f0 << 1 | was_f0) & ~from_90) | ((is_f4 << 1 | was_f4) & from_90);
        was_e0 = is_e0 >> 63, was_ed = is_ed >> 63, was_f0 = is_f0 >> 63, was_f4 = is_f4 >> 63;
    }
    return !(wrong | due);
}

}  // namespace pgo::avx512

#include "simd/avx512/off.hpp"
#endif
