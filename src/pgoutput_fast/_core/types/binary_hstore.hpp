// Reads the pairs that hstore_send writes and prints them as hstore_out does.
#pragma once
#include <cstdint>

#include "columns/buffer.hpp"
#include "protocol/reasons.hpp"
#include "types/utf8.hpp"
#include "protocol/wire.hpp"

namespace pgo {

inline void append_hstore_item(const uint8_t* p, size_t n, Buffer& out) {
    uint8_t* const start = out.reserve(2 * n + 2);
    uint8_t* at = start;
    *at++ = '"';
    for (size_t i = 0; i < n; ++i) {
        if (p[i] == '"' || p[i] == '\\') *at++ = '\\';
        *at++ = p[i];
    }
    *at++ = '"';
    out.set_size(out.size() + static_cast<size_t>(at - start));
}

inline Reason print_hstore(const uint8_t* p, uint32_t length, Buffer& out) {
    const uint8_t* const end = p + length;
    const size_t before = out.size();
    if (length < 4) return BAD_LENGTH;
    const int64_t count = static_cast<int32_t>(load32(p));
    p += 4;
    if (count < 0 || count > (end - p) / 8) return BAD_LENGTH;
    for (int64_t i = 0; i < count; ++i) {
        if (i) out.append(", ", 2);
        if (end - p < 4) return BAD_LENGTH;
        const int32_t key = static_cast<int32_t>(load32(p));
        p += 4;
        if (key < 0 || key > end - p) return BAD_LENGTH;
        append_hstore_item(p, static_cast<size_t>(key), out);
        p += key;
        out.append("=>", 2);
        if (end - p < 4) return BAD_LENGTH;
        const int32_t value = static_cast<int32_t>(load32(p));
        p += 4;
        if (value == -1) {
            out.append("NULL", 4);
            continue;
        }
        if (value < 0 || value > end - p) return BAD_LENGTH;
        append_hstore_item(p, static_cast<size_t>(value), out);
        p += value;
    }
    if (p != end) return BAD_LENGTH;
    return is_utf8(out.data() + before, out.size() - before) ? OK : NOT_UTF8;
}

}  // namespace pgo
