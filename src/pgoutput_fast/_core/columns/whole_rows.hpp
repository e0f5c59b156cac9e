// Hashes of whole rows, and comparison of rows.
//
// The rows of a pair may be far apart in memory, so cache misses dominate. Pairs are compared in blocks, and every step
// prefetches the data of the next step. All pairs are compared in one column before the next column, so that only the
// pages of one column are in use.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "columns/chunk.hpp"

namespace pgo {

enum class Layout { bits, fixed, float32, float64, offsets32, offsets64 };

// Hashes bytes. The upper bits of a product depend on all bits of its factors, so they are folded into the lower bits
// before the next word.
inline uint64_t hash_bytes(const uint8_t* data, int64_t size, uint64_t factor) {
    uint64_t found = static_cast<uint64_t>(size);
    for (; size >= 8; data += 8, size -= 8) {
        found = (found ^ word<uint64_t>(data)) * factor;
        found ^= found >> 32;
    }
    uint64_t rest = 0;
    for (int64_t i = 0; i < size; ++i) rest |= static_cast<uint64_t>(data[i]) << (8 * i);
    return found ^ rest;
}

// The positions of a block's rows: chunk, and row within the chunk.
struct Places {
    static constexpr int64_t block = 64;
    uint32_t chunk[block];
    uint32_t row[block];
};

// The chunk sizes of a column. The columns of a table usually have the same.
class ChunkLayout {
public:
    void add(int64_t rows) {
        firsts_.push_back(rows_);
        rows_ += rows;
        if (firsts_.size() == 1) per_row_ = 1.0 / static_cast<double>(rows);
    }

    int64_t rows() const { return rows_; }
    bool operator==(const ChunkLayout& other) const { return firsts_ == other.firsts_ && rows_ == other.rows_; }

    void find(const int64_t* rows, int64_t n, Places& out) const {
        const size_t last = firsts_.size() - 1;
        for (int64_t i = 0; i < n; ++i) {
            // Nearly always all chunks have as many rows as the first one. A division would take longer.
            size_t k = static_cast<size_t>(static_cast<double>(rows[i]) * per_row_);
            if (k > last) k = last;
            while (firsts_[k] > rows[i]) --k;
            while (k < last && firsts_[k + 1] <= rows[i]) ++k;
            out.chunk[i] = static_cast<uint32_t>(k);
            out.row[i] = static_cast<uint32_t>(rows[i] - firsts_[k]);
        }
    }

private:
    std::vector<int64_t> firsts_;  // first row of every chunk
    int64_t rows_ = 0;
    double per_row_ = 1.0;  // chunks per row, as in the first chunk
};

// Values of variable length of a block.
struct Bytes {
    const uint8_t* data[Places::block];
    int64_t size[Places::block];
};

class RowColumn {
public:
    RowColumn() = default;
    RowColumn(Layout layout, int64_t width) : layout_(layout), width_(width) {}

    // The chunk must not be empty.
    void add(const Chunk& chunk) {
        chunks_.push_back(chunk);
        nullable_ |= chunk.validity != nullptr;
        chunk_layout_.add(chunk.rows);
    }

    const ChunkLayout& chunk_layout() const { return chunk_layout_; }

    // Adds a hash of every value to `hashes`: equal values add the same. A null adds nothing. For values of variable
    // length, only the length counts, unless `whole` is set.
    void add_hashes(uint64_t factor, bool whole, uint64_t* hashes) const {
        for (const Chunk& chunk : chunks_) {
            if (chunk.validity == nullptr) hash_chunk<false>(chunk, factor, whole, hashes);
            else hash_chunk<true>(chunk, factor, whole, hashes);
            hashes += chunk.rows;
        }
    }

    // Sets marks[i] where the values of a block differ. `found` is working memory.
    void mark_unequal(const Places& one, const Places& other, int64_t n, Bytes& found, uint8_t* marks) const {
        switch (layout_) {
            case Layout::bits: break;
            case Layout::offsets32: locate<int32_t>(other, n, found); break;
            case Layout::offsets64: locate<int64_t>(other, n, found); break;
            default: prefetch(other, n, &Chunk::values, width_);
        }
        nullable_ ? compare<true>(one, other, found, n, marks) : compare<false>(one, other, found, n, marks);
    }

private:
    Layout layout_ = Layout::fixed;
    int64_t width_ = 0;
    bool nullable_ = false;
    ChunkLayout chunk_layout_;
    std::vector<Chunk> chunks_;

    template <bool nullable>
    void hash_chunk(const Chunk& chunk, uint64_t factor, bool whole, uint64_t* hashes) const {
        const auto each = [&](auto value) {
            for (int64_t i = 0, row = chunk.offset; i < chunk.rows; ++i, ++row)
                if (!nullable || is_set(chunk.validity, row)) hashes[i] += static_cast<uint64_t>(value(row)) * factor;
        };
        const auto varying = [&](auto offset) {
            using Offset = decltype(offset);
            if (whole && chunk.values != nullptr)
                each([&](int64_t row) {
                    const Span value = span<Offset>(chunk, row);
                    return hash_bytes(value.data, value.size, factor);
                });
            else
                each([&](int64_t row) { return length<Offset>(chunk, row); });
        };
        const uint8_t* values = chunk.values;
        switch (layout_) {
            case Layout::bits: return each([=](int64_t row) { return is_set(values, row); });
            case Layout::float32:
                return each([=](int64_t row) { return one_nan<uint32_t, float>(values + row * 4); });
            case Layout::float64:
                return each([=](int64_t row) {
                    const uint64_t bits = one_nan<uint64_t, double>(values + row * 8);
                    // Floats with few significant digits differ only in their upper half.
                    return bits ^ bits >> 32;
                });
            case Layout::offsets32: return varying(int32_t{});
            case Layout::offsets64: return varying(int64_t{});
            case Layout::fixed: break;
        }
        switch (width_) {
            case 1: return each([=](int64_t row) { return values[row]; });
            case 2: return each([=](int64_t row) { return word<uint16_t>(values + row * 2); });
            case 4: return each([=](int64_t row) { return word<uint32_t>(values + row * 4); });
            case 8: return each([=](int64_t row) { return word<uint64_t>(values + row * 8); });
        }
        const int64_t width = width_;
        each([=](int64_t row) { return hash_bytes(values + row * width, width, factor); });
    }

    // In PostgreSQL all NaNs are equal.
    template <class Bits, class Float>
    static Bits one_nan(const uint8_t* p) {
        const Float value = word<Float>(p);
        return value == value ? word<Bits>(p) : ~Bits{0};
    }

    void prefetch(const Places& at, int64_t n, const uint8_t* Chunk::* buffer, int64_t width) const {
        const Chunk* chunks = chunks_.data();
        for (int64_t i = 0; i < n; ++i) {
            const Chunk& chunk = chunks[at.chunk[i]];
            __builtin_prefetch(chunk.*buffer + (chunk.offset + at.row[i]) * width);
        }
    }

    template <class Offset>
    static int64_t length(const Chunk& chunk, int64_t row) {
        const uint8_t* p = chunk.offsets + row * static_cast<int64_t>(sizeof(Offset));
        return static_cast<int64_t>(word<Offset>(p + sizeof(Offset))) - static_cast<int64_t>(word<Offset>(p));
    }

    struct Span {
        const uint8_t* data;
        int64_t size;
    };

    template <class Offset>
    static Span span(const Chunk& chunk, int64_t row) {
        const uint8_t* p = chunk.offsets + row * static_cast<int64_t>(sizeof(Offset));
        return {chunk.values + word<Offset>(p), length<Offset>(chunk, row)};
    }

    // Locates and prefetches values of variable length.
    template <class Offset>
    void locate(const Places& at, int64_t n, Bytes& found) const {
        prefetch(at, n, &Chunk::offsets, sizeof(Offset));
        const Chunk* chunks = chunks_.data();
        for (int64_t i = 0; i < n; ++i) {
            const Chunk& chunk = chunks[at.chunk[i]];
            const Span value = span<Offset>(chunk, chunk.offset + at.row[i]);
            found.data[i] = value.data;
            found.size[i] = value.size;
            __builtin_prefetch(value.data);
            // A value may end in the next cache line.
            if (value.size > 0) __builtin_prefetch(value.data + value.size - 1);
        }
    }

    template <bool nullable>
    void compare(const Places& one, const Places& other, const Bytes& found, int64_t n, uint8_t* marks) const {
        switch (layout_) {
            case Layout::bits: return each<nullable>(one, other, n, marks, Bits{});
            case Layout::float32: return each<nullable>(one, other, n, marks, Floats<float>{});
            case Layout::float64: return each<nullable>(one, other, n, marks, Floats<double>{});
            case Layout::offsets32: return compare_bytes<nullable, int32_t>(one, other, found, n, marks);
            case Layout::offsets64: return compare_bytes<nullable, int64_t>(one, other, found, n, marks);
            case Layout::fixed: break;
        }
        switch (width_) {
            case 1: return each<nullable>(one, other, n, marks, Words<uint8_t>{});
            case 2: return each<nullable>(one, other, n, marks, Words<uint16_t>{});
            case 4: return each<nullable>(one, other, n, marks, Words<uint32_t>{});
            case 8: return each<nullable>(one, other, n, marks, Words<uint64_t>{});
        }
        const int64_t width = width_;
        each<nullable>(one, other, n, marks, [width](const Chunk& a, int64_t i, const Chunk& b, int64_t j, int64_t) {
            return std::memcmp(a.values + i * width, b.values + j * width, static_cast<size_t>(width)) != 0;
        });
    }

    struct Bits {
        bool operator()(const Chunk& a, int64_t i, const Chunk& b, int64_t j, int64_t) const {
            return is_set(a.values, i) != is_set(b.values, j);
        }
    };

    template <class T>
    struct Words {
        bool operator()(const Chunk& a, int64_t i, const Chunk& b, int64_t j, int64_t) const {
            constexpr int64_t width = sizeof(T);
            return word<T>(a.values + i * width) != word<T>(b.values + j * width);
        }
    };

    // In PostgreSQL all NaNs are equal. -0.0 and 0.0 are stored differently, so they differ here.
    template <class T>
    struct Floats {
        bool operator()(const Chunk& a, int64_t i, const Chunk& b, int64_t j, int64_t) const {
            constexpr int64_t width = sizeof(T);
            const T x = word<T>(a.values + i * width), y = word<T>(b.values + j * width);
            return std::memcmp(&x, &y, sizeof x) != 0 && !(x != x && y != y);
        }
    };

    template <bool nullable, class Offset>
    void compare_bytes(const Places& one, const Places& other, const Bytes& found, int64_t n, uint8_t* marks) const {
        each<nullable>(one, other, n, marks, [&found](const Chunk& a, int64_t row, const Chunk&, int64_t, int64_t i) {
            const Span value = span<Offset>(a, row);
            return value.size != found.size[i] ||
                   (value.size > 0 && std::memcmp(value.data, found.data[i], static_cast<size_t>(value.size)) != 0);
        });
    }

    // Calls differ(chunk, row, chunk of the other, row of the other, i) where neither value is null.
    template <bool nullable, class Differ>
    void each(const Places& one, const Places& other, int64_t n, uint8_t* marks, Differ differ) const {
        const Chunk* chunks = chunks_.data();
        for (int64_t i = 0; i < n; ++i) {
            const Chunk& a = chunks[one.chunk[i]];
            const Chunk& b = chunks[other.chunk[i]];
            const int64_t j = a.offset + one.row[i], k = b.offset + other.row[i];
            if (nullable) {
                const bool there = a.validity == nullptr || is_set(a.validity, j);
                if (there != (b.validity == nullptr || is_set(b.validity, k))) marks[i] = 1;
                if (!there || marks[i]) continue;
            }
            marks[i] |= differ(a, j, b, k, i);
        }
    }
};

// Columns of the same length.
class WholeRows {
public:
    void add(RowColumn&& column) {
        size_t layout = 0;
        while (layout < layouts_.size() && !(layouts_[layout] == column.chunk_layout())) ++layout;
        if (layout == layouts_.size()) layouts_.push_back(column.chunk_layout());
        layout_of_.push_back(layout);
        columns_.push_back(std::move(column));
    }

    // Every column has its own factor, so that few sums are equal by chance. Strings and binaries of the first column
    // are hashed as a whole, because they often identify the row.
    void hash(uint64_t* hashes) const {
        // An odd number with well-mixed bits: 2 ** 64 divided by the golden ratio.
        constexpr uint64_t factor = 0x9E3779B97F4A7C15u;
        uint64_t power = factor;
        for (size_t c = 0; c < columns_.size(); ++c, power *= factor) columns_[c].add_hashes(power, c == 0, hashes);
    }

    // Sets marks[i] where any values of the rows ones[i] and others[i] differ. All row numbers must be valid.
    void mark_unequal(const int64_t* ones, const int64_t* others, int64_t count, uint8_t* marks) const {
        constexpr int64_t block = Places::block;
        const size_t blocks = static_cast<size_t>((count + block - 1) / block);
        std::vector<Places> one(blocks), other(blocks);
        Bytes found;
        for (size_t layout = 0; layout < layouts_.size(); ++layout) {
            for (size_t b = 0; b < blocks; ++b) {
                const int64_t at = static_cast<int64_t>(b) * block, n = count - at < block ? count - at : block;
                layouts_[layout].find(ones + at, n, one[b]);
                layouts_[layout].find(others + at, n, other[b]);
            }
            for (size_t c = 0; c < columns_.size(); ++c) {
                if (layout_of_[c] != layout) continue;
                for (size_t b = 0; b < blocks; ++b) {
                    const int64_t at = static_cast<int64_t>(b) * block, n = count - at < block ? count - at : block;
                    columns_[c].mark_unequal(one[b], other[b], n, found, marks + at);
                }
            }
        }
    }

private:
    std::vector<RowColumn> columns_;
    std::vector<size_t> layout_of_;  // per column
    std::vector<ChunkLayout> layouts_;  // distinct layouts
};

}  // namespace pgo
