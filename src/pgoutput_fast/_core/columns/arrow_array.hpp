// The structs of the Arrow C data interface, as its specification defines them, and the export of columns through them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "columns/column.hpp"

namespace pgo {

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void** buffers;
    ArrowArray** children;
    ArrowArray* dictionary;
    void (*release)(ArrowArray*);
    void* private_data;
};

// The memory of one array. Every child has its own owner, because a consumer may move a child out of its parent.
struct ArrayOwner {
    const void* buffers[3] = {nullptr, nullptr, nullptr};
    size_t sizes[3] = {0, 0, 0};
    std::vector<ArrowArray> children;
    std::vector<ArrowArray*> pointers;
};

inline void release_array(ArrowArray* array) noexcept {
    auto* owner = static_cast<ArrayOwner*>(array->private_data);
    for (ArrowArray& child : owner->children)
        if (child.release) child.release(&child);
    for (const void* data : owner->buffers) BlockPool::release(static_cast<uint8_t*>(const_cast<void*>(data)));
    delete owner;
    array->release = nullptr;
}

inline ArrayOwner* start_array(ArrowArray* out, int64_t length, int64_t nulls, int64_t n_buffers, size_t n_children) {
    auto made = std::make_unique<ArrayOwner>();
    ArrayOwner* owner = made.get();
    owner->children.resize(n_children);
    owner->pointers.reserve(n_children);
    for (ArrowArray& child : owner->children) {
        child = ArrowArray{};
        owner->pointers.push_back(&child);
    }
    *out = ArrowArray{length, nulls, 0, n_buffers, static_cast<int64_t>(n_children), owner->buffers,
                      owner->pointers.data(), nullptr, release_array, made.release()};
    return owner;
}

inline void give_buffer(ArrayOwner* owner, int at, Buffer& buffer) {
    // A consumer may dereference the buffers of an empty array, so a null pointer is not enough.
    if (!buffer.data()) buffer.assign_zero(8), buffer.set_size(0);
    owner->sizes[at] = buffer.size();
    owner->buffers[at] = buffer.release();
}

// Moves the column's buffers into `out`. The column is empty afterwards and can be filled again.
inline void give_column(Column& column, ArrowArray* out) {
    const bool variable = column.plan.layout == Layout::BYTES;
    const bool list = column.plan.layout == Layout::LIST;
    const bool structure = column.plan.layout == Layout::STRUCT;
    column.learn_lengths();
    ColumnBuffers& buffers = column.buffers;
    ArrayOwner* owner = start_array(out, static_cast<int64_t>(buffers.rows), static_cast<int64_t>(buffers.nulls),
                                    variable ? 3 : structure ? 1 : 2, list ? 1 : column.fields.size());
    if (buffers.nulls) give_buffer(owner, 0, buffers.validity);
    buffers.validity = Buffer();
    if (variable || list) {
        buffers.reserve_offsets(0);
        give_buffer(owner, 1, buffers.offsets);
    }
    for (size_t k = 0; k < column.fields.size(); ++k) give_column(*column.fields[k], &owner->children[k]);
    if (list) give_column(*column.child, &owner->children[0]);
    else if (!structure) give_buffer(owner, variable ? 2 : 1, buffers.data);
    buffers.rows = buffers.nulls = 0;
}

// Makes an array of `n` nulls with a FIXED or LIST layout. Its buffers are zeros that the kernel provides on first use,
// so this touches no memory.
inline void give_nulls(const Column& column, size_t n, ArrowArray* out) {
    const bool list = column.plan.layout == Layout::LIST;
    ArrayOwner* owner = start_array(out, static_cast<int64_t>(n), static_cast<int64_t>(n), 2, list ? 1 : 0);
    Buffer validity, zeros;
    validity.assign_zero((n + 7) / 8);
    zeros.assign_zero((n + 1) * (list ? sizeof(int32_t) : column.plan.width));
    give_buffer(owner, 0, validity);
    give_buffer(owner, 1, zeros);
    if (list) {
        Column none;
        none.plan.layout = column.child->plan.layout;
        give_column(none, &owner->children[0]);
    }
}

}  // namespace pgo
