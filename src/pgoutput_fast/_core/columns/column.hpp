// One output column: the decisions that a relation version fixes, and the Arrow buffers that the column fills.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "columns/buffer.hpp"
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

// How many bytes vector loops may read before a cell and after it.
constexpr uint32_t ROOM_BEFORE = 48, ROOM_BEHIND = 64;

// Facts about the cells of a block.
struct Facts {
    int32_t signs = 0;                            // negative if any cell is missing
    uint32_t shortest = UINT32_MAX, longest = 0;  // lengths of the cells that are present
    uint32_t first = UINT32_MAX, end = 0;         // lowest offset where a cell begins, highest where one ends
    size_t total = 0;                             // bytes of the cells that are present
};

// How serious an issue is. Of several issues inside one cell, only the most serious is reported.
inline int gravity(Reason reason) noexcept { return is_malformed(reason) ? 2 : is_unrepresentable(reason) ? 1 : 0; }

struct Column;
// Appends exactly `n` values. A missing cell or a cell with an issue becomes zero, an empty value or an empty list.
using Convert = void (*)(Column&, Source, const Cell*, size_t n, Issues&);

// The sizes of a column before a block, so that `rewind` can remove the block again.
struct Mark {
    size_t rows = 0, nulls = 0, data = 0, offsets = 0;
    bool has_validity = false;
};

struct Column {
    // Fixed once per relation version.
    Layout layout = Layout::FIXED;
    uint32_t width = 0;  // bytes of a FIXED value
    Convert text = nullptr;
    Convert binary = nullptr;
    int precision = 0, scale = 0;
    uint32_t element_oid = 0;  // 0: any
    Numerics numerics = Numerics::NONE;
    size_t leaves = 0;         // in a list of composites or ranges: how many leaf values one element takes
    std::unique_ptr<Column> child;
    std::vector<std::unique_ptr<Column>> fields;
    std::vector<uint32_t> field_oids;  // the type oids that a binary composite must announce for its fields

    // Filled block by block. A LIST has its elements in `child`, a STRUCT has its fields in `fields`.
    size_t rows = 0;
    size_t nulls = 0;
    Buffer validity;  // empty as long as there is no null
    Buffer offsets;   // BYTES and LIST: int32, rows + 1
    Buffer data;

    // The average length of a value in the previous batch. It sizes the buffers of a new batch.
    double bytes_per_row = 0;

    // Facts about the current cells, and working memory.
    bool missing = false;
    bool roomy = false;                  // vector loops may read before and after every cell
    size_t room = 0;                     // how many bytes follow the end of the last cell
    uint32_t shortest = 0, longest = 0;  // lengths of the cells that are not missing
    size_t total = 0;                    // total bytes of these cells
    uint32_t patience = 0;               // how many chunks of cells to wait before a vector loop is tried again
    std::vector<Cell> cells;
    std::vector<uint8_t> arena;
    std::vector<uint8_t> valid;
    Issues child_issues;            // issues of this column as the child of a list
    Issues child_issues_of_fields;  // issues of this column's fields

    Mark mark() const noexcept { return {rows, nulls, data.size(), offsets.size(), validity.size() != 0}; }

    void rewind(const Mark& m) noexcept {
        rows = m.rows;
        nulls = m.nulls;
        if (layout == Layout::BITS) keep_bits(data, m.rows);
        else data.set_size(m.data);
        offsets.set_size(m.offsets);
        keep_bits(validity, m.has_validity ? m.rows : 0);
        if (child) child->rewind_rows(list_end());
        for (auto& field : fields) field->rewind_rows(rows);
    }

    void add_field(Column* field, uint32_t oid) {
        std::unique_ptr<Column> owned(field);
        field_oids.push_back(oid);
        fields.push_back(std::move(owned));
    }

    int32_t* int_offsets() noexcept { return reinterpret_cast<int32_t*>(offsets.data()); }

    // Allocates space for about `n` more rows in advance, because a buffer that grows may have to be copied.
    void expect(size_t n) {
        if (layout == Layout::BITS) {
            data.expect(n / 8 + 1);
        } else if (layout == Layout::FIXED) {
            data.expect(n * width);
        } else if (layout == Layout::STRUCT) {
            for (auto& field : fields) field->expect(n);
        } else {
            offsets.expect((n + 1) * sizeof(int32_t));
            size_t likely = static_cast<size_t>(bytes_per_row * static_cast<double>(n) * 1.05);
            if (layout == Layout::BYTES) data.expect(likely);
            else child->expect(likely);
        }
    }
    // Remembers how long values are. Call it before the buffers are given away and before `expect`.
    void learn_lengths() noexcept {
        if (rows == 0) return;
        if (child) child->learn_lengths();
        size_t contents = child ? child->rows : data.size();
        bytes_per_row = static_cast<double>(contents) / static_cast<double>(rows);
    }

    // Returns where the next n + 1 offsets go. The first of them exists already; in an empty column this writes it.
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

    // Where the next n validity bits go. `rows` must be a multiple of eight. The caller updates `rows` and `nulls`.
    uint8_t* reserve_validity(size_t n) {
        if (validity.size() == 0) append_ones(validity, 0, rows);
        return validity.append_uninitialized((n + 7) / 8);
    }

    // Sets which of the n rows just appended are present: one byte per row, 0 or 1. A null `there` means all of them.
    void append_validity(const uint8_t* there, size_t n) {
        if (there) {
            size_t present = 0;
            for (size_t i = 0; i < n; ++i) present += there[i];
            if (present != n) {
                if (validity.size() == 0) append_ones(validity, 0, rows);
                append_bits(validity, rows, there, n);
                nulls += n - present;
                rows += n;
                return;
            }
        }
        if (validity.size() != 0) append_ones(validity, rows, n);
        rows += n;
    }

    // Frees working memory that has become large. Otherwise each of many relations with arrays would keep its own.
    void give_back_room() noexcept {
        give_back(cells), give_back(arena), give_back(valid), give_back(child_issues), give_back(child_issues_of_fields);
        if (child) child->give_back_room();
        for (auto& field : fields) field->give_back_room();
    }

    size_t bytes() const noexcept {
        size_t total = data.size() + offsets.size() + validity.size() + (child ? child->bytes() : 0);
        for (const auto& field : fields) total += field->bytes();
        return total;
    }
    size_t largest_data() const noexcept {
        size_t largest = layout == Layout::BYTES ? data.size() : 0;
        if (child) largest = std::max(child->rows, child->largest_data());
        for (const auto& field : fields) largest = std::max(largest, field->largest_data());
        return largest;
    }

private:
    static constexpr size_t LARGE_ROOM = 1 << 12;
    template <class T>
    static void give_back(std::vector<T>& room) noexcept {
        if (room.capacity() * sizeof(T) > LARGE_ROOM) std::vector<T>().swap(room);
    }
    size_t list_end() const noexcept {
        if (layout != Layout::LIST || offsets.size() == 0) return 0;
        return static_cast<size_t>(reinterpret_cast<const int32_t*>(offsets.data())[offsets.size() / 4 - 1]);
    }
    // Cuts the column to its first n rows.
    void rewind_rows(size_t n) noexcept {
        size_t valid_bits = 0;
        if (validity.size() && n != rows) {
            for (size_t i = 0; i < n; ++i) valid_bits += validity.data()[i >> 3] >> (i & 7) & 1;
            keep_bits(validity, n);
            nulls = n - valid_bits;
        }
        rows = n;
        if (layout == Layout::FIXED) data.set_size(n * width);
        else if (layout == Layout::BITS) keep_bits(data, n);
        else if (layout == Layout::STRUCT) for (auto& field : fields) field->rewind_rows(n);
        else if (offsets.size() != 0) {
            offsets.set_size((n + 1) * sizeof(int32_t));
            if (layout == Layout::BYTES) data.set_size(static_cast<size_t>(int_offsets()[n]));
            else child->rewind_rows(list_end());
        }
    }
};

// Marks those of the n int64 just written that equal `null` as null, and replaces them by zero.
inline void settle_nulls(Column& column, int64_t* values, size_t n, int64_t null) {
    bool any = false;
    for (size_t i = 0; i < n; ++i) any |= values[i] == null;
    if (!any) {
        column.append_validity(nullptr, n);
        return;
    }
    column.valid.resize(n);
    for (size_t i = 0; i < n; ++i) {
        column.valid[i] = values[i] != null;
        if (values[i] == null) values[i] = 0;
    }
    column.append_validity(column.valid.data(), n);
}

// Turns issues of elements, bounds or fields into issues of the cells that contain them. Each cell keeps one issue: the
// most serious, and among equally serious ones the first. `own` is where this column's own issues begin.
template <class RowOf>
inline void take_issues(Issues& issues, size_t own, const Issues& inner, RowOf row_of) {
    if (inner.empty()) return;
    for (const Issue& issue : inner) issues.push_back({row_of(issue.row), issue.reason, true});
    const auto first = issues.begin() + static_cast<std::ptrdiff_t>(own);
    std::stable_sort(first, issues.end(), [](const Issue& a, const Issue& b) {
        return a.row != b.row ? a.row < b.row : gravity(a.reason) > gravity(b.reason);
    });
    issues.erase(std::unique(first, issues.end(), [](const Issue& a, const Issue& b) { return a.row == b.row; }),
                 issues.end());
}

// Whether a column of int64 has had no value yet, which includes an empty column. Its nulls are then only counted; no
// buffer has them.
inline bool has_only_nulls(const Column& column) noexcept {
    return column.nulls == column.rows && column.validity.size() == 0;
}
inline void append_nulls(Column& column, size_t n) noexcept {
    column.rows += n;
    column.nulls += n;
}

// Does what settle_nulls does, if the caller already knows whether the last n int64 of the column's data contain a null
// or a value.
inline void settle_known(Column& column, size_t n, bool any_null, bool any_value, int64_t null) {
    const size_t rows = column.rows;
    const bool only_nulls = has_only_nulls(column);
    if (!any_value && only_nulls) {
        column.data.set_size(0);
        append_nulls(column, n);
        return;
    }
    if (rows && only_nulls) {
        column.data.append_uninitialized(rows * sizeof(int64_t));
        uint8_t* data = column.data.data();
        std::memmove(data + rows * sizeof(int64_t), data, n * sizeof(int64_t));
        std::memset(data, 0, rows * sizeof(int64_t));
        std::memset(column.validity.append_uninitialized((rows + 7) / 8), 0, (rows + 7) / 8);
    }
    if (!any_null) column.append_validity(nullptr, n);
    else settle_nulls(column, reinterpret_cast<int64_t*>(column.data.data() + column.data.size()) - n, n, null);
}

}  // namespace pgo
