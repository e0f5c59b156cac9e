// Limits that several stages share.
#pragma once
#include <cstdint>

namespace pgo {

// The server's MaxAllocSize, 1 GiB - 1. The server sends no longer message, row or value.
constexpr int64_t MAX_PAYLOAD = 0x3fffffff;

// Arrow's offsets of strings, binaries and lists are int32.
constexpr int64_t MAX_OFFSET = 0x7fffffff;

// Besides the payloads, a window's headers and items take about 30 bytes per message. If windows were larger, the
// payloads that the scan fetched would have left the cache before their values are read.
constexpr int64_t USUAL_WINDOW_MESSAGES = 1 << 14;
constexpr int64_t MESSAGE_WINDOW_BYTES = 1 << 24;

// Rows per block: the block's cells, their messages and the converted values stay in L2. It is not a power of two: the
// cells of one row are one block apart, and with a power of two they would share a few sets of the L1 cache.
constexpr int64_t BLOCK_ROWS = 520;
constexpr int64_t BLOCK_BYTES = 1 << 22;
// Cells per block, counting the fields of composites. Wide relations have shorter blocks. So do relations with arrays
// of composites, because nulls in them are short on the wire.
constexpr int64_t BLOCK_CELLS = 1 << 17;

// How long the converted values of a block can be. A numeric of few bytes can print as 147,456 characters. Of all other
// types, bit strings grow most: to eight times their bytes.
constexpr int64_t LONGEST_NUMERIC = 147'460;
constexpr int64_t GROWTH = 8;

}  // namespace pgo
