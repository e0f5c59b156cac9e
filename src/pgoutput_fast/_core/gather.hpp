// Cells of any length, one behind the other: the innermost loop of all text.
#pragma once
#include <cstdint>
#include <cstring>

#include "wire.hpp"

namespace pgo {

typedef uint8_t Vector16 __attribute__((vector_size(16)));

// Longer values are memcpy's business.
constexpr size_t SHORT_VALUE = 64;

// Copies [from, from + size) in steps of sixteen bytes, so up to fifteen bytes too far on both sides; ORs all that it
// saw into `seen`.
inline void copy_short(uint8_t* out, const uint8_t* from, size_t size, Vector16& seen) noexcept {
    Vector16 v;
    size_t at = 0;
    do {
        std::memcpy(&v, from + at, sizeof v);
        std::memcpy(out + at, &v, sizeof v);
        seen |= v;
        at += sizeof v;
    } while (at < size);
}

inline bool any_high_bit(const Vector16& v) noexcept {
    uint64_t halves[2];
    std::memcpy(halves, &v, sizeof v);
    return ((halves[0] | halves[1]) & 0x8080808080808080ull) != 0;
}

// Copies n cells, `skip` bytes short of their beginnings, to `out` (which has room for them and SLACK behind) and writes
// offsets[1..n] from offsets[0] on. Returns whether all of it can only be ASCII; false means that one has to look.
inline bool gather_cells(const uint8_t* base, const uint8_t* end, const Cell* cells, size_t n, uint32_t skip,
                         uint8_t* out, int32_t* offsets) noexcept {
    Vector16 seen{};
    bool ascii = true;
    uint8_t* const start = out;
    const int32_t first = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const int32_t length = cells[i].length;
        if (length > static_cast<int32_t>(skip)) {
            const uint8_t* from = base + cells[i].offset + skip;
            const size_t size = static_cast<uint32_t>(length) - skip;
            if (size <= SHORT_VALUE && end - from >= static_cast<int64_t>(SHORT_VALUE)) {
                copy_short(out, from, size, seen);
            } else {
                std::memcpy(out, from, size);
                ascii = false;
            }
            out += size;
        }
        offsets[i + 1] = first + static_cast<int32_t>(out - start);
    }
    return ascii && !any_high_bit(seen);
}

}  // namespace pgo
