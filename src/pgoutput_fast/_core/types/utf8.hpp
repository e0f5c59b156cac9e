// Checks whether bytes are UTF-8. Long runs of ASCII are the common case, so it checks them 32 bytes at a time.
#pragma once
#include <cstdint>
#include <cstring>

#include "protocol/wire.hpp"

namespace pgo {

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
inline bool is_utf8(const uint8_t* p, size_t n) noexcept {
    const uint8_t* end = p + n;
    auto follows = [](uint8_t c) { return (c & 0xC0) == 0x80; };
    while (p < end) {
        if (end - p >= 32) {
            uint64_t any = load64_raw(p) | load64_raw(p + 8) | load64_raw(p + 16) | load64_raw(p + 24);
            if (!(any & 0x8080808080808080ull)) {
                p += 32;
                continue;
            }
        }
        if (end - p >= 8 && !(load64_raw(p) & 0x8080808080808080ull)) {
            p += 8;
            continue;
        }
        uint8_t c = *p;
        if (c < 0x80) {
            p += 1;
        } else if (c >= 0xC2 && c <= 0xDF) {
            if (end - p < 2 || !follows(p[1])) return false;
            p += 2;
        } else if (c >= 0xE0 && c <= 0xEF) {
            if (end - p < 3 || !follows(p[1]) || !follows(p[2])) return false;
            if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F)) return false;
            p += 3;
        } else if (c >= 0xF0 && c <= 0xF4) {
            if (end - p < 4 || !follows(p[1]) || !follows(p[2]) || !follows(p[3])) return false;
            if ((c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F)) return false;
            p += 4;
        } else {
            return false;
        }
    }
    return true;
}

}  // namespace pgo
