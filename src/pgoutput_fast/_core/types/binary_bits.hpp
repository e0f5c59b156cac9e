// bit and varbit: a count of bits, then bytes. The highest bit of each byte comes first.
#pragma once
#include <cstdint>
#include <cstring>

#include "columns/buffer.hpp"
#include "protocol/reasons.hpp"
#include "protocol/wire.hpp"

namespace pgo {

struct BitTable {
    uint8_t text[256][8];
    constexpr BitTable() : text() {
        for (int i = 0; i < 256; ++i)
            for (int k = 0; k < 8; ++k) text[i][k] = static_cast<uint8_t>('0' + (i >> (7 - k) & 1));
    }
};
inline constexpr BitTable BIT_TEXT{};

// The padding bits in the last byte are not part of the value.
inline Reason print_bits(const uint8_t* p, uint32_t n, Buffer& out) {
    if (n < 4) return BAD_LENGTH;
    const int32_t bits = static_cast<int32_t>(load32(p));
    if (bits < 0) return OUT_OF_RANGE;
    const size_t bytes = (static_cast<size_t>(bits) + 7) / 8;
    if (n - 4 != bytes) return BAD_LENGTH;
    uint8_t* at = out.reserve(8 * bytes);
    for (size_t i = 0; i < bytes; ++i) std::memcpy(at + 8 * i, BIT_TEXT.text[p[4 + i]], 8);
    out.set_size(out.size() + static_cast<size_t>(bits));
    return OK;
}

}  // namespace pgo
