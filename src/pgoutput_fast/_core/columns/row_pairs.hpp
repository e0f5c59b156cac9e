// Compares values of a column with those of other rows of the same column.
//
// The other rows lie anywhere, so most of the time is cache misses. A block of pairs is looked at in steps, and each
// step prefetches what the next one needs.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace pgo {

// A chunk of a column, as Arrow stores it. `first` is the row of the column with which it begins.
struct Chunk {
    const uint8_t* validity;  // null if no value is missing
    const uint8_t* offsets;   // null for values of fixed size
    const uint8_t* values;
    int64_t offset;
    int64_t first;
};

enum class Layout { bits, fixed, floating, offsets32, offsets64 };

class PairColumn {
public:
    PairColumn(Layout layout, int64_t width) : layout_(layout), width_(width) {}

    void add(const Chunk& chunk, int64_t rows) {
        chunks_.push_back(chunk);
        rows_ += rows;
        if (chunks_.size() == 1) per_row_ = 1.0 / static_cast<double>(rows > 0 ? rows : 1);
    }

    int64_t rows() const { return rows_; }

    // Sets marks[i] where the values of ones[i] and others[i] differ. All rows must be in the column.
    void mark_unequal(const int64_t* ones, const int64_t* others, int64_t count, uint8_t* marks) const {
        for (int64_t at = 0; at < count; at += block) {
            const int64_t n = count - at < block ? count - at : block;
            switch (layout_) {
                case Layout::bits: mark_fixed<Layout::bits>(ones + at, others + at, n, marks + at); break;
                case Layout::fixed: mark_fixed<Layout::fixed>(ones + at, others + at, n, marks + at); break;
                case Layout::floating: mark_fixed<Layout::floating>(ones + at, others + at, n, marks + at); break;
                case Layout::offsets32: mark_varying<int32_t>(ones + at, others + at, n, marks + at); break;
                case Layout::offsets64: mark_varying<int64_t>(ones + at, others + at, n, marks + at); break;
            }
        }
    }

private:
    static constexpr int64_t block = 64;

    struct Place {
        const Chunk* chunk;
        int64_t row;  // in the buffers of the chunk
    };

    struct Bytes {
        const uint8_t* data;
        int64_t size;
    };

    Layout layout_;
    int64_t width_;
    int64_t rows_ = 0;
    double per_row_ = 1.0;  // chunks for each row, as in the first chunk
    std::vector<Chunk> chunks_;

    Place place_of(int64_t row) const {
        // Nearly always all chunks have as many rows as the first one. A division would take longer.
        size_t k = static_cast<size_t>(static_cast<double>(row) * per_row_);
        if (k >= chunks_.size()) k = chunks_.size() - 1;
        while (chunks_[k].first > row) --k;
        while (k + 1 < chunks_.size() && chunks_[k + 1].first <= row) ++k;
        return {&chunks_[k], chunks_[k].offset + row - chunks_[k].first};
    }

    static bool is_set(const uint8_t* bits, int64_t at) { return bits[at >> 3] >> (at & 7) & 1; }

    static bool is_valid(const Place& at) {
        return at.chunk->validity == nullptr || is_set(at.chunk->validity, at.row);
    }

    template <Layout layout>
    void mark_fixed(const int64_t* ones, const int64_t* others, int64_t n, uint8_t* marks) const {
        Place other[block];
        for (int64_t i = 0; i < n; ++i) {
            other[i] = place_of(others[i]);
            if (layout != Layout::bits) __builtin_prefetch(other[i].chunk->values + other[i].row * width_);
        }
        for (int64_t i = 0; i < n; ++i) {
            if (marks[i]) continue;
            const Place one = place_of(ones[i]);
            const bool valid = is_valid(one);
            if (valid != is_valid(other[i])) {
                marks[i] = 1;
            } else if (valid) {
                marks[i] = differ<layout>(one, other[i]);
            }
        }
    }

    template <Layout layout>
    bool differ(const Place& one, const Place& other) const {
        if (layout == Layout::bits)
            return is_set(one.chunk->values, one.row) != is_set(other.chunk->values, other.row);
        const uint8_t* a = one.chunk->values + one.row * width_;
        const uint8_t* b = other.chunk->values + other.row * width_;
        const bool same = width_ == 8 ? word<uint64_t>(a) == word<uint64_t>(b)
                        : width_ == 4 ? word<uint32_t>(a) == word<uint32_t>(b)
                                      : std::memcmp(a, b, static_cast<size_t>(width_)) == 0;
        if (same || layout != Layout::floating) return !same;
        // PostgreSQL has one NaN. -0.0 and 0.0 are stored differently, so they are not the same here.
        if (width_ == 8) return !(word<double>(a) != word<double>(a) && word<double>(b) != word<double>(b));
        return !(word<float>(a) != word<float>(a) && word<float>(b) != word<float>(b));
    }

    template <class T>
    static T word(const uint8_t* p) {
        T found;
        std::memcpy(&found, p, sizeof found);
        return found;
    }

    template <class Offset>
    static Bytes bytes_of(const Place& at) {
        const uint8_t* p = at.chunk->offsets + at.row * static_cast<int64_t>(sizeof(Offset));
        const int64_t begin = word<Offset>(p);
        return {at.chunk->values + begin, static_cast<int64_t>(word<Offset>(p + sizeof(Offset))) - begin};
    }

    template <class Offset>
    void mark_varying(const int64_t* ones, const int64_t* others, int64_t n, uint8_t* marks) const {
        Place other[block];
        Bytes bytes[block];
        for (int64_t i = 0; i < n; ++i) {
            other[i] = place_of(others[i]);
            __builtin_prefetch(other[i].chunk->offsets + other[i].row * static_cast<int64_t>(sizeof(Offset)));
        }
        for (int64_t i = 0; i < n; ++i) {
            bytes[i] = bytes_of<Offset>(other[i]);
            __builtin_prefetch(bytes[i].data);
            // A value may end in the next line of the cache.
            if (bytes[i].size > 0) __builtin_prefetch(bytes[i].data + bytes[i].size - 1);
        }
        for (int64_t i = 0; i < n; ++i) {
            if (marks[i]) continue;
            const Place one = place_of(ones[i]);
            const bool valid = is_valid(one);
            if (valid != is_valid(other[i])) {
                marks[i] = 1;
            } else if (valid) {
                const Bytes mine = bytes_of<Offset>(one);
                marks[i] = mine.size != bytes[i].size ||
                           (mine.size > 0 && std::memcmp(mine.data, bytes[i].data, static_cast<size_t>(mine.size)) != 0);
            }
        }
    }
};

}  // namespace pgo
