// Conversion to and from hexadecimal digits, and both forms of a UUID. PostgreSQL prints digits in lower case, PostGIS in
// upper case.
#pragma once
#include <cstdint>
#include <cstring>

namespace pgo {

struct HexTable {
    uint8_t value[256];
    constexpr explicit HexTable(char a) : value() {
        for (int i = 0; i < 256; ++i) value[i] = 0xff;
        for (int i = 0; i < 10; ++i) value['0' + i] = static_cast<uint8_t>(i);
        for (int i = 0; i < 6; ++i) value[a + i] = static_cast<uint8_t>(10 + i);
    }
};
inline constexpr HexTable HEX{'a'}, UPPER_HEX{'A'};

// Reads `n` bytes from 2n digits. Returns false if a character is not a digit.
template <const HexTable& digits = HEX>
inline bool from_hex(const uint8_t* p, size_t n, uint8_t* out) noexcept {
    uint8_t bad = 0;
    for (size_t i = 0; i < n; ++i) {
        uint8_t high = digits.value[p[2 * i]], low = digits.value[p[2 * i + 1]];
        bad |= high | low;
        out[i] = static_cast<uint8_t>(high << 4 | (low & 15));
    }
    return bad < 16;
}

// The two digits of every byte.
struct HexPairs {
    uint8_t pair[256][2];
    constexpr HexPairs() : pair() {
        for (int i = 0; i < 256; ++i) {
            pair[i][0] = static_cast<uint8_t>("0123456789abcdef"[i >> 4]);
            pair[i][1] = static_cast<uint8_t>("0123456789abcdef"[i & 15]);
        }
    }
};
inline constexpr HexPairs HEX_PAIRS{};

inline void to_hex(const uint8_t* p, size_t n, uint8_t* out) noexcept {
    for (size_t i = 0; i < n; ++i) std::memcpy(out + 2 * i, HEX_PAIRS.pair[p[i]], 2);
}

constexpr uint32_t UUID_TEXT = 36, UUID_BYTES = 16;

inline void print_uuid(const uint8_t* p, uint8_t* out) noexcept {
    to_hex(p, 4, out);
    to_hex(p + 4, 2, out + 9);
    to_hex(p + 6, 2, out + 14);
    to_hex(p + 8, 2, out + 19);
    to_hex(p + 10, 6, out + 24);
    out[8] = out[13] = out[18] = out[23] = '-';
}

inline bool parse_uuid(const uint8_t* p, uint8_t* out) noexcept {
    uint8_t bad = static_cast<uint8_t>((p[8] ^ '-') | (p[13] ^ '-') | (p[18] ^ '-') | (p[23] ^ '-'));
    bool good = from_hex(p, 4, out);
    good &= from_hex(p + 9, 2, out + 4);
    good &= from_hex(p + 14, 2, out + 6);
    good &= from_hex(p + 19, 2, out + 8);
    good &= from_hex(p + 24, 6, out + 10);
    return good && !bad;
}

}  // namespace pgo
