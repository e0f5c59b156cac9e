// Limits that several stages share.
#pragma once
#include <cstdint>

namespace pgo {

// PostgreSQL's MaxAllocSize, 1 GiB - 1. A server sends no message, row or value that is longer.
constexpr int64_t MAX_PAYLOAD = 0x3fffffff;

// Arrow's offsets of strings, binaries and lists are int32.
constexpr int64_t MAX_OFFSET = 0x7fffffff;

// The limits of a window: messages and bytes. Scanning a window loads its payloads into the cache, and they must still
// be there when their values are read. A window's headers and items take about 30 more bytes per message.
constexpr int64_t USUAL_WINDOW_MESSAGES = 1 << 14;
constexpr int64_t MESSAGE_WINDOW_BYTES = 1 << 24;

// Rows per block. With this number, the block's cells, their messages and the converted values stay in the L2 cache. It
// is not a power of two, because the cells of one row are one block apart and would then share a few sets of the L1
// cache.
constexpr int64_t BLOCK_ROWS = 520;
constexpr int64_t BLOCK_BYTES = 1 << 22;
// Cells per block, including the fields of composites. Wide relations have blocks with fewer rows. So do relations with
// arrays of composites, because a null composite takes few bytes on the wire but one cell per field.
constexpr int64_t BLOCK_CELLS = 1 << 17;

// The maximum length of converted values. A numeric of few bytes can become a text of 147,456 characters. Values of all
// other types grow to at most eight times their bytes; bit strings reach that factor.
constexpr int64_t LONGEST_NUMERIC = 147'460;
constexpr int64_t GROWTH = 8;

}  // namespace pgo
