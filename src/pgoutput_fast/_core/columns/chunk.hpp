// A chunk of a table's column, in Arrow's memory layout.
#pragma once

#include <cstdint>
#include <cstring>

namespace pgo {

struct Chunk {
    const uint8_t* validity;  // null if no value is missing
    const uint8_t* offsets;   // null for values of fixed size
    const uint8_t* values;    // null if only the lengths of the values are needed
    int64_t offset;
    int64_t rows;
};

template <class T>
T word(const uint8_t* p) {
    T found;
    std::memcpy(&found, p, sizeof found);
    return found;
}

inline bool is_set(const uint8_t* bits, int64_t at) { return bits[at >> 3] >> (at & 7) & 1; }

}  // namespace pgo
