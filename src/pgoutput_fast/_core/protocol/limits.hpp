// Limits that several stages keep. Each of them stands here and nowhere else.
#pragma once
#include <cstdint>

namespace pgo {

// MaxAllocSize of the server, 1 GiB - 1: no message, row or value that it sends is longer.
constexpr int64_t MAX_PAYLOAD = 0x3fffffff;

// Offsets of strings, binaries and lists are int32 in Arrow.
constexpr int64_t MAX_OFFSET = 0x7fffffff;

// A window's headers and items take some 30 bytes a message beside the payloads themselves. Of larger ones, the cache
// has forgotten what scanning fetched when the values are read.
constexpr int64_t USUAL_WINDOW_MESSAGES = 1 << 14;
constexpr int64_t MESSAGE_WINDOW_BYTES = 1 << 24;

// Rows of a block: its cells, their messages and what they become stay in L2. Not a power of two: the cells of a row lie
// a block apart, and would all fall into the same few sets of the L1 cache.
constexpr int64_t BLOCK_ROWS = 520;
constexpr int64_t BLOCK_BYTES = 1 << 22;
// Wide relations have shorter blocks, and so have those with arrays of composites, whose nulls are short on the wire.
constexpr int64_t BLOCK_CELLS = 1 << 17;

// A numeric of few bytes can print as 147,456 characters. Of all other cells the bits of a bit string grow most, to eight
// times their bytes.
constexpr int64_t LONGEST_NUMERIC = 147'460;
constexpr int64_t GROWTH = 8;

}  // namespace pgo
