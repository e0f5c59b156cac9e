// Copies selected rows of a chunk. Row numbers are ascending.
#pragma once

#include <cstdint>
#include <cstring>

#include "columns/chunk.hpp"

namespace pgo {

// Copies bits to a new bitmap. Returns the number of set bits.
inline int64_t pick_bits(const uint8_t* bits, int64_t offset, const int32_t* rows, int64_t n, uint8_t* to) {
    int64_t set = 0;
    for (int64_t i = 0; i < n; i += 8) {
        unsigned byte = 0;
        const int64_t end = n - i < 8 ? n - i : 8;
        for (int64_t k = 0; k < end; ++k) byte |= static_cast<unsigned>(is_set(bits, offset + rows[i + k])) << k;
        to[i >> 3] = static_cast<uint8_t>(byte);
        set += __builtin_popcount(byte);
    }
    return set;
}

template <int64_t width>
void pick_words(const uint8_t* values, const int32_t* rows, int64_t n, uint8_t* to) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * width, values + rows[i] * width, static_cast<size_t>(width));
}

// Copies values that have `width` bytes each.
inline void pick_fixed(const Chunk& chunk, int64_t width, const int32_t* rows, int64_t n, uint8_t* to) {
    const uint8_t* values = chunk.values + chunk.offset * width;
    switch (width) {
        case 1: return pick_words<1>(values, rows, n, to);
        case 2: return pick_words<2>(values, rows, n, to);
        case 4: return pick_words<4>(values, rows, n, to);
        case 8: return pick_words<8>(values, rows, n, to);
        case 16: return pick_words<16>(values, rows, n, to);
    }
    for (int64_t i = 0; i < n; ++i)
        std::memcpy(to + i * width, values + rows[i] * width, static_cast<size_t>(width));
}

// Values of varying length. `Offset` is the type of their offsets.
template <class Offset>
struct PickedBytes {
    // Bytes that `copy` may write after the values.
    static constexpr int64_t slack = 32;

    // `bytes` is the size of the chunk's values in memory.
    PickedBytes(const Chunk& chunk, int64_t bytes) : chunk_(chunk), bytes_(bytes) {}

    int64_t size(const int32_t* rows, int64_t n) const {
        const uint8_t* begins = first_begin();
        int64_t sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += begin(begins, rows[i] + 1) - begin(begins, rows[i]);
        return sum;
    }

    // Writes n + 1 offsets, and the values. Without __restrict, the compiler would assume that a write of bytes may
    // change offsets, and reload them.
    void copy(const int32_t* __restrict rows, int64_t n, Offset* __restrict offsets, uint8_t* __restrict to) const {
        const uint8_t* __restrict begins = first_begin();
        const uint8_t* __restrict values = chunk_.values;
        // Values are copied in whole vectors if enough memory follows them. The ends of values ascend, so only the last
        // values can be too close to the end of the memory.
        int64_t whole = n;
        while (whole > 0 && begin(begins, rows[whole - 1] + 1) + slack > bytes_) --whole;
        int64_t at = 0;
        for (int64_t i = 0; i < whole; ++i) {
            const int64_t from = begin(begins, rows[i]), size = begin(begins, rows[i] + 1) - from;
            offsets[i] = static_cast<Offset>(at);
            // Copying an empty value costs less than a branch that would avoid it.
            std::memcpy(to + at, values + from, slack);
            for (int64_t k = slack; k < size; k += slack) std::memcpy(to + at + k, values + from + k, slack);
            at += size;
        }
        for (int64_t i = whole; i < n; ++i) {
            const int64_t from = begin(begins, rows[i]), size = begin(begins, rows[i] + 1) - from;
            offsets[i] = static_cast<Offset>(at);
            if (size > 0) std::memcpy(to + at, values + from, static_cast<size_t>(size));
            at += size;
        }
        offsets[n] = static_cast<Offset>(at);
    }

private:
    Chunk chunk_;
    int64_t bytes_;

    const uint8_t* first_begin() const {
        return chunk_.offsets + chunk_.offset * static_cast<int64_t>(sizeof(Offset));
    }

    static int64_t begin(const uint8_t* begins, int64_t row) {
        return word<Offset>(begins + row * static_cast<int64_t>(sizeof(Offset)));
    }
};

}  // namespace pgo
