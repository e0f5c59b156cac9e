// One output column: its plan, its Arrow buffers, statistics of its cells, and working memory.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "columns/buffer.hpp"
#include "columns/cell_list.hpp"
#include "protocol/reasons.hpp"
#include "protocol/wire.hpp"

namespace pgo {

enum class Layout : uint8_t { BITS, FIXED, BYTES, LIST, STRUCT };

// Where a column has numerics that become text: the column itself, its array elements, its range bounds or its fields.
enum class Numerics : uint8_t { NONE, ITSELF, IN_ARRAY, IN_MULTIRANGE, IN_RANGE, IN_COMPOSITE };

// The bytes that a block's cells point into. Nothing at `end` or after it may be read.
struct Source {
    const uint8_t* base;
    const uint8_t* end;
};

// A cell that could not be converted as it is. `inside` is true if only an element, a bound or a field is affected.
struct Issue {
    uint32_t row;
    Reason reason;
    bool inside;
};
using Issues = std::vector<Issue>;

inline bool is_malformed(Reason reason) noexcept { return reason != OK && reason < FIRST_UNREPRESENTABLE; }
inline bool is_unrepresentable(Reason reason) noexcept {
    return reason >= FIRST_UNREPRESENTABLE && reason < FIRST_NOTED;
}

// How many bytes vector loops may read before and after a cell.
constexpr uint32_t READ_BEFORE = 48, READ_AFTER = 64;

// Statistics of the cells of a block.
struct Extent {
    int32_t signs = 0;                            // negative if any cell is missing
    uint32_t shortest = UINT32_MAX, longest = 0;  // lengths of the cells that are present
    uint32_t first = UINT32_MAX, end = 0;         // lowest offset where a cell begins, highest where one ends
    size_t total = 0;                             // bytes of the cells that are present
};

// How serious an issue is. Of several issues inside one cell, only the most serious is reported.
inline int severity(Reason reason) noexcept { return is_malformed(reason) ? 2 : is_unrepresentable(reason) ? 1 : 0; }

struct Column;
// Appends exactly `n` values. A missing cell or a cell with an issue becomes zero, an empty value or an empty list.
using Convert = void (*)(Column&, Source, const Cell*, size_t n, Issues&);

// The sizes of a column before a block, so that `rewind` can remove the block again.
struct Mark {
    size_t rows = 0, nulls = 0, data = 0, offsets = 0;
    bool has_validity = false;
};

// The part of a column that the relation version and the options determine. It is constant while the column is filled.
struct ColumnPlan {
    Layout layout = Layout::FIXED;
    uint32_t width = 0;  // bytes of a FIXED value
    Convert text = nullptr;
    Convert binary = nullptr;
    int precision = 0, scale = 0;
    uint32_t element_oid = 0;  // 0: any
    Numerics numerics = Numerics::NONE;
    size_t leaves = 0;                 // in a list of composites or ranges: number of leaf values per element
    std::vector<uint32_t> field_oids;  // the type oids that a binary composite must announce for its fields
};

// The buffers of the Arrow array.
struct ColumnBuffers {
    size_t rows = 0;
    size_t nulls = 0;
    Buffer validity;  // empty until the first null
    Buffer offsets;   // BYTES and LIST: int32, rows + 1
    Buffer data;

    int32_t* int_offsets() noexcept { return reinterpret_cast<int32_t*>(offsets.data()); }

    // Returns a pointer to the next n + 1 offsets. The first of them is already set; in an empty column, this sets it
    // to zero.
    int32_t* reserve_offsets(size_t n) {
        if (offsets.size() == 0) {
            int32_t zero = 0;
            offsets.append(&zero, sizeof zero);
        }
        uint8_t* at = offsets.append_uninitialized(n * sizeof(int32_t));
        return reinterpret_cast<int32_t*>(at) - 1;
    }

    template <class T>
    T* reserve_values(size_t n) {
        return reinterpret_cast<T*>(data.append_uninitialized(n * sizeof(T)));
    }

    // Returns a pointer to the next n validity bits. `rows` must be a multiple of eight. The caller updates `rows` and
    // `nulls`.
    uint8_t* reserve_validity(size_t n) {
        if (validity.size() == 0) append_ones(validity, 0, rows);
        return validity.append_uninitialized((n + 7) / 8);
    }

    // Sets which of the last n rows are present: one byte per row, 0 or 1. A null `present_rows` means all of them.
    void append_validity(const uint8_t* present_rows, size_t n) {
        if (present_rows) {
            size_t present = 0;
            for (size_t i = 0; i < n; ++i) present += present_rows[i];
            if (present != n) {
                if (validity.size() == 0) append_ones(validity, 0, rows);
                append_bits(validity, rows, present_rows, n);
                nulls += n - present;
                rows += n;
                return;
            }
        }
        if (validity.size() != 0) append_ones(validity, rows, n);
        rows += n;
    }

    // For a LIST: the end of the last list, in rows of the child.
    size_t list_end() const noexcept {
        if (offsets.size() == 0) return 0;
        return static_cast<size_t>(reinterpret_cast<const int32_t*>(offsets.data())[offsets.size() / 4 - 1]);
    }
};

// Statistics of the cells. `convert_cells` sets the first six for every block; they determine which vector loops are
// used.
struct ColumnStatistics {
    bool missing = false;
    bool readable_around = false;        // vector loops may read before and after every cell
    size_t bytes_after = 0;             // number of bytes after the end of the last cell
    uint32_t shortest = 0, longest = 0;  // lengths of the cells that are not missing
    size_t total = 0;                    // total bytes of these cells
    uint32_t chunks_to_skip = 0;         // number of chunks to convert before a vector loop is tried again
    double bytes_per_row = 0;            // average length of a value in the previous batch: it sizes the next buffers
};

// Working memory of the converters. Nothing in it carries over to the next block.
struct ColumnScratch {
    CellList cells;
    CellList parts;  // of one cell
    std::vector<uint8_t> arena;
    std::vector<uint8_t> valid;
    Issues child_issues;  // issues of this column as the child of a list
    Issues field_issues;  // issues of this column's fields

    // Frees large vectors. Otherwise many relations with arrays would keep their own.
    void free_large() noexcept {
        cells.count = 0;
        free_if_large(cells.memory);
        parts.count = 0;
        free_if_large(parts.memory);
        free_if_large(arena);
        free_if_large(valid);
        free_if_large(child_issues);
        free_if_large(field_issues);
    }

private:
    static constexpr size_t LARGE_BYTES = 1 << 12;
    template <class T>
    static void free_if_large(std::vector<T>& memory) noexcept {
        if (memory.capacity() * sizeof(T) > LARGE_BYTES) std::vector<T>().swap(memory);
    }
};

// A LIST has its elements in `child`, a STRUCT has its fields in `fields`.
struct Column {
    ColumnPlan plan;
    ColumnBuffers buffers;
    ColumnStatistics statistics;
    ColumnScratch scratch;
    std::unique_ptr<Column> child;
    std::vector<std::unique_ptr<Column>> fields;

    Mark mark() const noexcept {
        return {buffers.rows, buffers.nulls, buffers.data.size(), buffers.offsets.size(), buffers.validity.size() != 0};
    }

    void rewind(const Mark& m) noexcept {
        buffers.rows = m.rows;
        buffers.nulls = m.nulls;
        if (plan.layout == Layout::BITS) keep_bits(buffers.data, m.rows);
        else buffers.data.set_size(m.data);
        buffers.offsets.set_size(m.offsets);
        keep_bits(buffers.validity, m.has_validity ? m.rows : 0);
        if (child) child->rewind_rows(buffers.list_end());
        for (auto& field : fields) field->rewind_rows(buffers.rows);
    }

    void add_field(Column* field, uint32_t oid) {
        std::unique_ptr<Column> owned(field);
        plan.field_oids.push_back(oid);
        fields.push_back(std::move(owned));
    }

    // Reserves space for about `n` more rows, because a growing buffer may have to be copied.
    void expect(size_t n) {
        if (plan.layout == Layout::BITS) {
            buffers.data.expect(n / 8 + 1);
        } else if (plan.layout == Layout::FIXED) {
            buffers.data.expect(n * plan.width);
        } else if (plan.layout == Layout::STRUCT) {
            for (auto& field : fields) field->expect(n);
        } else {
            buffers.offsets.expect((n + 1) * sizeof(int32_t));
            size_t likely = static_cast<size_t>(statistics.bytes_per_row * static_cast<double>(n) * 1.05);
            if (plan.layout == Layout::BYTES) buffers.data.expect(likely);
            else child->expect(likely);
        }
    }
    // Remembers the average length of values. Call it before the buffers are moved out and before `expect`.
    void learn_lengths() noexcept {
        if (buffers.rows == 0) return;
        if (child) child->learn_lengths();
        size_t contents = child ? child->buffers.rows : buffers.data.size();
        statistics.bytes_per_row = static_cast<double>(contents) / static_cast<double>(buffers.rows);
    }

    // Estimated bytes per row, from `learn_lengths`.
    double row_bytes() const noexcept {
        double total = 0.125;
        if (plan.layout == Layout::FIXED) total += plan.width;
        if (plan.layout == Layout::BYTES) total += sizeof(int32_t) + statistics.bytes_per_row;
        if (child) total += sizeof(int32_t) + statistics.bytes_per_row * child->row_bytes();
        for (const auto& field : fields) total += field->row_bytes();
        return total;
    }

    void free_scratch() noexcept {
        scratch.free_large();
        if (child) child->free_scratch();
        for (auto& field : fields) field->free_scratch();
    }

    size_t bytes() const noexcept {
        size_t total = buffers.data.size() + buffers.offsets.size() + buffers.validity.size();
        if (child) total += child->bytes();
        for (const auto& field : fields) total += field->bytes();
        return total;
    }
    size_t largest_data() const noexcept {
        size_t largest = plan.layout == Layout::BYTES ? buffers.data.size() : 0;
        if (child) largest = std::max(child->buffers.rows, child->largest_data());
        for (const auto& field : fields) largest = std::max(largest, field->largest_data());
        return largest;
    }

private:
    // Truncates the column to its first n rows.
    void rewind_rows(size_t n) noexcept {
        Buffer& validity = buffers.validity;
        size_t valid_bits = 0;
        if (validity.size() && n != buffers.rows) {
            for (size_t i = 0; i < n; ++i) valid_bits += validity.data()[i >> 3] >> (i & 7) & 1;
            keep_bits(validity, n);
            buffers.nulls = n - valid_bits;
        }
        buffers.rows = n;
        if (plan.layout == Layout::FIXED) buffers.data.set_size(n * plan.width);
        else if (plan.layout == Layout::BITS) keep_bits(buffers.data, n);
        else if (plan.layout == Layout::STRUCT) for (auto& field : fields) field->rewind_rows(n);
        else if (buffers.offsets.size() != 0) {
            buffers.offsets.set_size((n + 1) * sizeof(int32_t));
            if (plan.layout == Layout::BYTES) buffers.data.set_size(static_cast<size_t>(buffers.int_offsets()[n]));
            else child->rewind_rows(buffers.list_end());
        }
    }
};

// Of the n int64 just written, marks those equal to `null` as null and sets them to zero.
inline void set_validity(Column& column, int64_t* values, size_t n, int64_t null) {
    bool any = false;
    for (size_t i = 0; i < n; ++i) any |= values[i] == null;
    if (!any) {
        column.buffers.append_validity(nullptr, n);
        return;
    }
    column.scratch.valid.resize(n);
    for (size_t i = 0; i < n; ++i) {
        column.scratch.valid[i] = values[i] != null;
        if (values[i] == null) values[i] = 0;
    }
    column.buffers.append_validity(column.scratch.valid.data(), n);
}

// Turns issues of elements, bounds or fields into issues of the cells that contain them. A cell keeps one issue: the
// first of the most serious ones. `own` is the index of this column's first own issue.
template <class RowOf>
inline void take_issues(Issues& issues, size_t own, const Issues& inner, RowOf row_of) {
    if (inner.empty()) return;
    for (const Issue& issue : inner) issues.push_back({row_of(issue.row), issue.reason, true});
    const auto first = issues.begin() + static_cast<std::ptrdiff_t>(own);
    std::stable_sort(first, issues.end(), [](const Issue& a, const Issue& b) {
        return a.row != b.row ? a.row < b.row : severity(a.reason) > severity(b.reason);
    });
    issues.erase(std::unique(first, issues.end(), [](const Issue& a, const Issue& b) { return a.row == b.row; }),
                 issues.end());
}

// Whether an int64 column has no value yet. Its nulls are then only counted and not stored in buffers.
inline bool has_only_nulls(const Column& column) noexcept {
    return column.buffers.nulls == column.buffers.rows && column.buffers.validity.size() == 0;
}
inline void append_nulls(Column& column, size_t n) noexcept {
    column.buffers.rows += n;
    column.buffers.nulls += n;
}

// Like set_validity, for a caller that already knows whether the last n int64 of the column's data contain a null or a
// value.
inline void set_known_validity(Column& column, size_t n, bool any_null, bool any_value, int64_t null) {
    const size_t rows = column.buffers.rows;
    const bool only_nulls = has_only_nulls(column);
    if (!any_value && only_nulls) {
        column.buffers.data.set_size(0);
        append_nulls(column, n);
        return;
    }
    if (rows && only_nulls) {
        column.buffers.data.append_uninitialized(rows * sizeof(int64_t));
        uint8_t* data = column.buffers.data.data();
        std::memmove(data + rows * sizeof(int64_t), data, n * sizeof(int64_t));
        std::memset(data, 0, rows * sizeof(int64_t));
        std::memset(column.buffers.validity.append_uninitialized((rows + 7) / 8), 0, (rows + 7) / 8);
    }
    if (!any_null) column.buffers.append_validity(nullptr, n);
    else {
        Buffer& data = column.buffers.data;
        set_validity(column, reinterpret_cast<int64_t*>(data.data() + data.size()) - n, n, null);
    }
}

}  // namespace pgo
