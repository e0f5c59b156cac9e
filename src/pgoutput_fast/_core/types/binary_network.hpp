// Network addresses: inet and cidr (family, prefix length, cidr flag, size, bytes), macaddr and macaddr8.
#pragma once
#include <cstdint>
#include <cstring>

#include "columns/buffer.hpp"
#include "types/hex.hpp"
#include "types/printing.hpp"
#include "protocol/reasons.hpp"
#include "protocol/wire.hpp"

namespace pgo {

constexpr uint8_t FAMILY_V4 = 2, FAMILY_V6 = 3;
constexpr size_t LONGEST_INET = 48;

// Every byte as a decimal number followed by a dot, and the length of the number. A branch per digit would often be
// mispredicted.
struct Octets {
    uint8_t text[256][4], length[256];
    constexpr Octets() : text(), length() {
        for (int i = 0; i < 256; ++i) {
            uint8_t n = 0;
            if (i >= 100) text[i][n++] = static_cast<uint8_t>('0' + i / 100);
            if (i >= 10) text[i][n++] = static_cast<uint8_t>('0' + i / 10 % 10);
            text[i][n++] = static_cast<uint8_t>('0' + i % 10);
            text[i][n] = '.';
            length[i] = n;
        }
    }
};
inline constexpr Octets OCTETS{};

// Writes one byte more than it prints.
inline uint8_t* print_dotted(const uint8_t* p, uint8_t* out) noexcept {
    for (int i = 0; i < 4; ++i) {
        std::memcpy(out, OCTETS.text[p[i]], 4);
        out += OCTETS.length[p[i]] + 1;
    }
    return out - 1;
}

// Prints eight groups of up to four hexadecimal digits, without leading zeros. The longest run of at least two zero
// groups becomes "::", the first one if several are equally long. An address that embeds an IPv4 address (::a.b.c.d,
// ::ffff:a.b.c.d) ends in dotted form.
inline uint8_t* print_v6(const uint8_t* p, uint8_t* out) noexcept {
    unsigned words[8];
    for (int i = 0; i < 8; ++i) words[i] = load16(p + 2 * i);
    int first = 8, length = 1;
    for (int i = 0; i < 8;) {
        int j = i;
        while (j < 8 && words[j] == 0) ++j;
        if (j - i > length) {
            first = i;
            length = j - i;
        }
        i = j + 1;
    }
    const bool embeds_v4 = first == 0 && (length == 6 || (length == 5 && words[5] == 0xffff));
    for (int i = 0; i < 8; ++i) {
        if (i == first) {
            *out++ = ':';
            i += length;
            if (i == 8) *out++ = ':';
        }
        if (i == 8) break;
        if (i) *out++ = ':';
        if (i == 6 && embeds_v4) return print_dotted(p + 12, out);
        bool leading = true;
        for (int shift = 12; shift >= 0; shift -= 4) {
            const unsigned digit = words[i] >> shift & 15;
            leading = leading && digit == 0 && shift;
            if (!leading) *out++ = static_cast<uint8_t>("0123456789abcdef"[digit]);
        }
    }
    return out;
}

// A cidr always shows its prefix length. An inet shows it only if the address is not a single host.
template <bool is_cidr>
inline Reason print_inet(const uint8_t* p, uint32_t n, Buffer& out) {
    if (n < 4) return BAD_LENGTH;
    const uint8_t family = p[0], bits = p[1], size = p[3];
    if (family != FAMILY_V4 && family != FAMILY_V6) return OUT_OF_RANGE;
    const uint8_t bytes = family == FAMILY_V4 ? 4 : 16;
    if (size != bytes || n != 4u + bytes) return BAD_LENGTH;
    if (bits > 8 * bytes || p[2] > 1) return OUT_OF_RANGE;
    uint8_t* start = out.reserve(LONGEST_INET);
    uint8_t* q = family == FAMILY_V4 ? print_dotted(p + 4, start) : print_v6(p + 4, start);
    if (is_cidr || bits != 8 * bytes) {
        *q++ = '/';
        q = print_short(bits, q);
    }
    out.set_size(out.size() + static_cast<size_t>(q - start));
    return OK;
}

template <size_t bytes>
inline uint8_t* print_macaddr(const uint8_t* p, uint8_t* out) noexcept {
    for (size_t i = 0; i < bytes; ++i) {
        if (i) *out++ = ':';
        to_hex(p + i, 1, out);
        out += 2;
    }
    return out;
}

}  // namespace pgo
