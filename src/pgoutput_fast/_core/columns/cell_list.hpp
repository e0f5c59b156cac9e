// Cells that are appended one after another. What earlier blocks used stays as it is: nothing clears it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "protocol/wire.hpp"

namespace pgo {

struct CellList {
    std::vector<Cell> memory;
    size_t count = 0;

    // Returns where the next cells go. There is space for `extra` of them; the caller adds to `count`.
    Cell* reserve(size_t extra) {
        if (memory.size() - count < extra) memory.resize(std::max(count + extra, memory.size() + memory.size() / 2));
        return memory.data() + count;
    }
    void add(Cell cell) {
        *reserve(1) = cell;
        ++count;
    }
    Cell* begin() noexcept { return memory.data(); }
    Cell* end() noexcept { return memory.data() + count; }
};

// Where the flags of ranges go, a byte for each.
struct RangeFlags {
    uint8_t *lower_inc, *upper_inc, *empty;
};

}  // namespace pgo
