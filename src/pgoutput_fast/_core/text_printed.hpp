// Whether text is such as the server prints for a type whose text is kept as it is. Grammar, not meaning: of the types
// whose text has one that takes a few lines.
#pragma once
#include <cstddef>
#include <cstdint>

#include "convert.hpp"

namespace pgo {

inline bool is_bits(const uint8_t* p, size_t n) noexcept {
    uint8_t other = 0;
    for (size_t i = 0; i < n; ++i) other |= static_cast<uint8_t>(p[i] ^ '0');
    return other <= 1;
}

// A number without leading zeros, at most `most`. Moves p behind it.
inline bool take_number(const uint8_t*& p, const uint8_t* end, uint64_t most) noexcept {
    const uint8_t* const start = p;
    uint64_t value = 0;
    for (; p < end && is_digit(*p); ++p) {
        const unsigned digit = *p - '0';
        if (value > (most - digit) / 10) return false;
        value = value * 10 + digit;
    }
    return p != start && (*start != '0' || p - start == 1);
}

inline bool is_xid8(const uint8_t* p, size_t n) noexcept {
    const uint8_t* const end = p + n;
    return take_number(p, end, UINT64_MAX) && p == end;
}

inline bool is_tid(const uint8_t* p, size_t n) noexcept {
    const uint8_t* const end = p + n;
    if (n < 2 || *p++ != '(' || !take_number(p, end, UINT32_MAX) || p == end || *p++ != ',') return false;
    return take_number(p, end, UINT16_MAX) && p + 1 == end && *p == ')';
}

inline bool is_lower_hex(uint8_t c) noexcept { return is_digit(c) || (c >= 'a' && c <= 'f'); }

template <size_t bytes>
inline bool is_macaddr(const uint8_t* p, size_t n) noexcept {
    if (n != 3 * bytes - 1) return false;
    bool good = true;
    for (size_t i = 0; i < n; ++i) good &= i % 3 == 2 ? p[i] == ':' : is_lower_hex(p[i]);
    return good;
}

inline bool take_dotted(const uint8_t*& p, const uint8_t* end) noexcept {
    for (int i = 0; i < 4; ++i) {
        if (i && (p == end || *p++ != '.')) return false;
        if (!take_number(p, end, 255)) return false;
    }
    return true;
}

// Eight groups of up to four digits; "::" stands once for some that are zero, the last two may be dotted.
inline bool take_v6(const uint8_t*& p, const uint8_t* end) noexcept {
    int groups = 0;
    bool shortened = false;
    if (end - p >= 2 && p[0] == ':' && p[1] == ':') {
        shortened = true;
        p += 2;
    }
    while (p < end && *p != '/') {
        const uint8_t* q = p;
        while (q < end && is_lower_hex(*q)) ++q;
        if (q == p || groups == 8) return false;
        if (q < end && *q == '.') {
            if (!take_dotted(p, end)) return false;
            groups += 2;
            break;
        }
        if (q - p > 4 || (*p == '0' && q - p > 1)) return false;
        ++groups;
        p = q;
        if (p == end || *p == '/') break;
        if (*p++ != ':' || p == end) return false;
        if (*p == ':') {
            if (shortened) return false;
            shortened = true;
            ++p;
        } else if (*p == '/') {
            return false;
        }
    }
    return shortened ? groups < 8 : groups == 8;
}

template <bool is_cidr>
inline bool is_inet(const uint8_t* p, size_t n) noexcept {
    const uint8_t* const end = p + n;
    const uint8_t* q = p;
    while (q < end && is_lower_hex(*q)) ++q;
    const bool v4 = q < end && *q == '.';
    if (!(v4 ? take_dotted(p, end) : take_v6(p, end))) return false;
    if (p == end) return !is_cidr;
    return *p++ == '/' && take_number(p, end, v4 ? 32 : 128) && p == end;
}

// Text that is kept as it is if it Is what it must be; all of these are of ASCII letters.
template <bool (*Is)(const uint8_t*, size_t) noexcept>
inline void checked_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    bool good = true;
    for (size_t i = 0; i < n; ++i)
        if (cells[i].length >= 0) good &= Is(source.base + cells[i].offset, static_cast<size_t>(cells[i].length));
    if (good) {
        gather_bytes(column, source, cells, n, 0);
        return;
    }
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (!Is(p, length)) return BAD_TEXT;
        out.append(p, length);
        return OK;
    });
}

}  // namespace pgo
