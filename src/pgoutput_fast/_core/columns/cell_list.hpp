// A growable list of cells. Cells of earlier blocks are not cleared.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "protocol/wire.hpp"

namespace pgo {

struct CellList {
    std::vector<Cell> memory;
    size_t count = 0;

    // Returns a pointer to space for `extra` more cells. The caller increases `count`.
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

// The output arrays for the flags of ranges, one byte per flag.
struct RangeFlags {
    uint8_t *lower_inc, *upper_inc, *empty;
};

}  // namespace pgo
