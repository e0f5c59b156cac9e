// Copies cells of any length one after another. This is the innermost loop for all text.
#pragma once
#include <cstdint>
#include <cstring>

#include "protocol/wire.hpp"

namespace pgo {

typedef uint8_t Vector16 __attribute__((vector_size(16)));

// memcpy copies values that are longer than this.
constexpr size_t SHORT_VALUE = 64;

// Copies [from, from + size) in whole vectors, so it reads and writes up to 31 bytes more. ORs every byte it read into
// `seen`. It always copies at least two vectors: the second copy costs less than a branch that could avoid it.
inline void copy_short(uint8_t* out, const uint8_t* from, size_t size, Vector16& seen) noexcept {
    Vector16 v, w;
    std::memcpy(&v, from, sizeof v);
    std::memcpy(&w, from + 16, sizeof w);
    std::memcpy(out, &v, sizeof v);
    std::memcpy(out + 16, &w, sizeof w);
    seen |= v | w;
    if (size <= 32) return;
    std::memcpy(&v, from + 32, sizeof v);
    std::memcpy(&w, from + 48, sizeof w);
    std::memcpy(out + 32, &v, sizeof v);
    std::memcpy(out + 48, &w, sizeof w);
    seen |= v | w;
}

inline bool any_high_bit(const Vector16& v) noexcept {
    uint64_t halves[2];
    std::memcpy(halves, &v, sizeof v);
    return ((halves[0] | halves[1]) & 0x8080808080808080ull) != 0;
}

// Properties of the copied values.
struct Gathered {
    bool ascii = true;    // true: all bytes are ASCII; false: unknown, the caller must check
    bool whole = false;   // true: no value begins in the middle of a character; false: unknown, the caller must check
    uint32_t others = 0;  // nonzero if any skipped byte is not 1
};

// Copies n cells to `out`, each without its first `skip` bytes. `skip` is 0 or 1, and no cell may be shorter than that.
// `out` must have space for all of them plus SLACK. Writes offsets[1..n], starting from offsets[0].
template <uint32_t skip>
Gathered gather_cells(const uint8_t* base, const uint8_t* end, const Cell* cells, size_t n, uint8_t* out,
                      int32_t* offsets) noexcept {
    Vector16 seen{};
    Gathered found;
    uint8_t* const start = out;
    const int32_t first = offsets[0];
    for (size_t i = 0; i < n; ++i) {
        const int32_t length = cells[i].length;
        if (skip && length >= 0) found.others |= base[cells[i].offset] ^ uint32_t{1};
        if (length > static_cast<int32_t>(skip)) {
            const uint8_t* from = base + cells[i].offset + skip;
            const size_t size = static_cast<uint32_t>(length) - skip;
            if (size <= SHORT_VALUE && end - from >= static_cast<int64_t>(SHORT_VALUE)) {
                copy_short(out, from, size, seen);
            } else {
                std::memcpy(out, from, size);
                found.ascii = false;
            }
            out += size;
        }
        offsets[i + 1] = first + static_cast<int32_t>(out - start);
    }
    found.ascii = found.ascii && !any_high_bit(seen);
    return found;
}

}  // namespace pgo
