// Loops for ARM processors, which all have NEON: for digits, hexadecimal digits and UUIDs. The rules in
// simd/avx2/registers.hpp about refused cells and about readable bytes around a cell also apply here. There is no loop
// to copy text, because the vectors in columns/gather.hpp are equally fast.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "columns/column.hpp"
#include "simd/tables.hpp"
#include "protocol/wire.hpp"

#if defined(__aarch64__) && defined(__GNUC__)
#define PGO_NEON 1
#include <arm_neon.h>

namespace pgo::neon {

inline bool is_zero(uint8x16_t v) noexcept { return vmaxvq_u8(v) == 0; }
inline bool is_all_ones(uint8x16_t v) noexcept { return vminvq_u8(v) == 0xff; }
inline uint8x16_t last_lanes(uint64_t n) noexcept { return vld1q_u8(MASKS.last + 16 + n); }
inline uint8x16_t first_lanes(uint32_t n) noexcept { return vld1q_u8(MASKS.first + 64 - n); }

// ---- cell statistics --------------------------------------------------------------------------------------------

// Computes statistics of the cells in groups of four and returns the number of cells processed. The sum of the lengths
// is less than 2^32, because no source is larger.
inline size_t extent(const Cell* cells, size_t n, Extent* out) noexcept {
    const uint32x4_t none = vdupq_n_u32(0);
    uint32x4_t signs = none, longest = none, end = none, total = none;
    uint32x4_t shortest = vdupq_n_u32(UINT32_MAX), first = shortest;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const uint32x4x2_t four = vld2q_u32(reinterpret_cast<const uint32_t*>(cells + i));  // offsets, lengths
        const uint32x4_t absent = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(four.val[1]), 31));
        const uint32x4_t size = vbicq_u32(four.val[1], absent);
        signs = vorrq_u32(signs, absent);
        shortest = vminq_u32(shortest, four.val[1]);
        longest = vmaxq_u32(longest, size);
        total = vaddq_u32(total, size);
        first = vminq_u32(first, vorrq_u32(four.val[0], absent));
        end = vmaxq_u32(end, vbicq_u32(vaddq_u32(four.val[0], size), absent));
    }
    out->signs |= static_cast<int32_t>(vmaxvq_u32(signs));
    out->shortest = std::min(out->shortest, vminvq_u32(shortest));
    out->longest = std::max(out->longest, vmaxvq_u32(longest));
    out->total += vaddlvq_u32(total);
    out->first = std::min(out->first, vminvq_u32(first));
    out->end = std::max(out->end, vmaxvq_u32(end));
    return i;
}

// ---- numbers ----------------------------------------------------------------------------------------------------

// Joins sixteen digits (0 to 9, highest first) to a number.
inline uint64_t join_digits(uint8x16_t x) noexcept {
    const uint16x8_t pairs = vreinterpretq_u16_u8(x);
    const uint16x8_t hundreds = vmlaq_n_u16(vshrq_n_u16(pairs, 8), vandq_u16(pairs, vdupq_n_u16(0xff)), 10);
    const uint32x4_t fours = vreinterpretq_u32_u16(hundreds);
    const uint32x4_t tens = vmlaq_n_u32(vshrq_n_u32(fours, 16), vandq_u32(fours, vdupq_n_u32(0xffff)), 100);
    const uint64x2_t eights = vreinterpretq_u64_u32(tens);
    const uint64x2_t halves = vmlal_n_u32(vshrq_n_u64(eights, 32), vmovn_u64(eights), 10000);
    return vgetq_lane_u64(halves, 0) * 100000000 + vgetq_lane_u64(halves, 1);
}

// Reads integers of at most 16 characters.
template <class T>
bool integers(Source source, const Cell* cells, size_t n, T* out, const Column& column) noexcept {
    constexpr uint64_t most = static_cast<uint64_t>(std::numeric_limits<T>::max());
    if (column.statistics.longest > 16) return false;
    uint8x16_t wrong_characters = vdupq_n_u8(0);
    uint64_t bad = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint8_t* p = source.base + cells[i].offset;
        const uint64_t length = static_cast<uint32_t>(cells[i].length), minus = *p == '-';
        const uint8x16_t x =
            vandq_u8(veorq_u8(vld1q_u8(p + length - 16), vdupq_n_u8('0')), last_lanes(length - minus));
        wrong_characters = vorrq_u8(wrong_characters, vcgtq_u8(x, vdupq_n_u8(9)));
        const uint64_t value = join_digits(x);
        bad |= value - static_cast<uint64_t>(LEAST.of[length + (SIGNED - 1) * minus]);
        // Also refuses the minimum of T, because without its sign it is greater than `most`.
        bad |= most - value;
        out[i] = static_cast<T>((value ^ (0 - minus)) + minus);
    }
    return !(bad >> 63) && is_zero(wrong_characters);
}

inline bool long_integers(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    return integers<int64_t>(source, cells, n, out, column);
}

// An oid column has 64 bits per value.
inline bool oids(Source source, const Cell* cells, size_t n, int64_t* out, const Column& column) noexcept {
    if (!integers<int64_t>(source, cells, n, out, column)) return false;
    int64_t beyond = 0;
    for (size_t i = 0; i < n; ++i) beyond |= out[i] >> 32;  // a negative number has these bits too
    return beyond == 0;
}

// ---- hexadecimal ------------------------------------------------------------------------------------------------

// All ones in lanes that hold 0-9 or a-f.
inline uint8x16_t are_hex(uint8x16_t c) noexcept {
    return vorrq_u8(vcleq_u8(vsubq_u8(c, vdupq_n_u8('0')), vdupq_n_u8(9)),
                    vcleq_u8(vsubq_u8(c, vdupq_n_u8('a')), vdupq_n_u8(5)));
}
inline uint8x16_t nibbles(uint8x16_t c) noexcept {
    return vmlaq_u8(vandq_u8(c, vdupq_n_u8(15)), vshrq_n_u8(c, 6), vdupq_n_u8(9));
}

constexpr uint8_t ALL = 0xff, NONE = 0xff;  // NONE is an index beyond every table

// Copies UUIDs that are text and stay text, and checks their form. `out` must have space for 36 n bytes and SLACK.
inline bool uuids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets, const Column&) noexcept {
    // The dashes among the characters 0 to 15, 16 to 31 and 20 to 35.
    static constexpr uint8_t DASHES[3][16] = {{0, 0, 0, 0, 0, 0, 0, 0, ALL, 0, 0, 0, 0, ALL},
                                              {0, 0, ALL, 0, 0, 0, 0, ALL},
                                              {0, 0, 0, ALL}};
    const uint8x16_t first = vld1q_u8(DASHES[0]), second = vld1q_u8(DASHES[1]), third = vld1q_u8(DASHES[2]);
    const uint8x16_t dash = vdupq_n_u8('-');
    uint8x16_t good = vdupq_n_u8(ALL);
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint8_t* p = source.base + (cells[i].offset & present);
        const uint8x16_t a = vld1q_u8(p), b = vld1q_u8(p + 16), c = vld1q_u8(p + 20);
        const uint8x16_t fits = vandq_u8(vandq_u8(vbslq_u8(first, vceqq_u8(a, dash), are_hex(a)),
                                                  vbslq_u8(second, vceqq_u8(b, dash), are_hex(b))),
                                         vbslq_u8(third, vceqq_u8(c, dash), are_hex(c)));
        good = vandq_u8(good, vorrq_u8(fits, vdupq_n_u8(static_cast<uint8_t>(~present))));
        bad |= (cells[i].length != 36) & present;
        vst1q_u8(out, a);
        vst1q_u8(out + 16, b);
        vst1q_u8(out + 20, c);
        out += 36 & present;
        at += static_cast<int32_t>(36 & present);
        offsets[i + 1] = at;
    }
    return !bad && is_all_ones(good);
}

// Prints UUIDs of 16 bytes each. `out` must have space for 36 n bytes and SLACK.
inline bool binary_uuids(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets,
                         const Column&) noexcept {
    // The digits at the characters 0 to 15, 16 to 31 and 20 to 35. NONE becomes a dash.
    static constexpr uint8_t DIGITS[3][16] = {{0, 1, 2, 3, 4, 5, 6, 7, NONE, 8, 9, 10, 11, NONE, 12, 13},
                                              {14, 15, NONE, 16, 17, 18, 19, NONE, 20, 21, 22, 23, 24, 25, 26, 27},
                                              {17, 18, 19, NONE, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}};
    const uint8x16_t letters = vld1q_u8(reinterpret_cast<const uint8_t*>("0123456789abcdef")), dash = vdupq_n_u8('-');
    const uint8x16_t places[3] = {vld1q_u8(DIGITS[0]), vld1q_u8(DIGITS[1]), vld1q_u8(DIGITS[2])};
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint8x16_t x = vld1q_u8(source.base + (cells[i].offset & present));
        const uint8x16_t high = vqtbl1q_u8(letters, vshrq_n_u8(x, 4));
        const uint8x16_t low = vqtbl1q_u8(letters, vandq_u8(x, vdupq_n_u8(15)));
        const uint8x16x2_t digits = {{vzip1q_u8(high, low), vzip2q_u8(high, low)}};
        bad |= (cells[i].length != 16) & present;
        vst1q_u8(out, vqtbx2q_u8(dash, digits, places[0]));
        vst1q_u8(out + 16, vqtbx2q_u8(dash, digits, places[1]));
        vst1q_u8(out + 20, vqtbx2q_u8(dash, digits, places[2]));
        out += 36 & present;
        at += static_cast<int32_t>(36 & present);
        offsets[i + 1] = at;
    }
    return !bad;
}

// Reads bytea in hex format. `out` must have space for half of the cells' bytes and SLACK.
inline bool byteas(Source source, const Cell* cells, size_t n, uint8_t* out, int32_t* offsets, const Column&) noexcept {
    uint8x16_t good = vdupq_n_u8(ALL);
    uint32_t bad = 0;
    int32_t at = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const uint32_t present = presence(cells[i].length);
        const uint8_t* p = source.base + (cells[i].offset & present);
        const uint32_t length = static_cast<uint32_t>(cells[i].length);
        bad |= ((length < 2) | (length & 1) | (p[0] != '\\') | (p[1] != 'x')) & present;
        uint32_t left = ((length - 2) & present & (0 - static_cast<uint32_t>(length >= 2))) / 2;
        const uint32_t size = left;
        p += 2;
        uint8_t* to = out;
        for (;;) {
            const uint8x16x2_t digits = vld2q_u8(p);  // first the high digits, then the low digits
            const uint8x16_t behind = vmvnq_u8(first_lanes(left < 16 ? left : 16));
            good = vandq_u8(good, vorrq_u8(vandq_u8(are_hex(digits.val[0]), are_hex(digits.val[1])), behind));
            vst1q_u8(to, vsliq_n_u8(nibbles(digits.val[1]), nibbles(digits.val[0]), 4));
            if (left <= 16) break;
            left -= 16;
            p += 32;
            to += 16;
        }
        out += size;
        at += static_cast<int32_t>(size);
        offsets[i + 1] = at;
    }
    return !bad && is_all_ones(good);
}

}  // namespace pgo::neon
#endif
