// Packs a small batch into one block of memory. Many relations make many small batches. If every buffer had a block of
// its own, headers and slack would take more memory than the data.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "columns/arrow_array.hpp"

namespace pgo {

// A batch with more bytes than this in its buffers is not packed: its overhead is small and a copy is expensive.
constexpr size_t LARGEST_PACKED = size_t{1} << 16;

// The header of a packed batch. The child arrays, the pointers to them, and all buffers follow it.
struct PackedBatch {
    void* raw;
    std::atomic<size_t> holders;  // arrays not released yet; a consumer may have moved any of them out of its parent
};

class Packer {
public:
    // Moves the array and all its descendants into one block of memory, if they are small. If memory runs out, they
    // stay as they are.
    static void pack(ArrowArray* array) noexcept {
        Packer packer;
        if (!packer.measure(*array)) return;
        const size_t head = padded(sizeof(PackedBatch) + packer.structs_);
        void* raw = std::malloc(head + packer.bytes_ + ALIGNMENT);
        if (!raw) return;
        const auto start = (reinterpret_cast<uintptr_t>(raw) + ALIGNMENT - 1) & ~uintptr_t{ALIGNMENT - 1};
        auto* at = reinterpret_cast<uint8_t*>(start);
        packer.batch_ = new (at) PackedBatch{raw, {packer.arrays_}};
        packer.next_struct_ = at + sizeof(PackedBatch);
        packer.next_bytes_ = at + head;
        ArrowArray old = *array;
        packer.move(old, array);
        old.release(&old);
    }

private:
    static constexpr size_t padded(size_t n) noexcept { return (n + ALIGNMENT - 1) & ~(ALIGNMENT - 1); }

    bool measure(const ArrowArray& array) noexcept {
        const auto* owner = static_cast<const ArrayOwner*>(array.private_data);
        ++arrays_;
        structs_ += static_cast<size_t>(array.n_buffers) * sizeof(void*) +
                    static_cast<size_t>(array.n_children) * (sizeof(ArrowArray) + sizeof(ArrowArray*));
        for (int64_t k = 0; k < array.n_buffers; ++k)
            if (owner->buffers[k] && !BlockPool::is_zeros(owner->buffers[k])) bytes_ += padded(owner->sizes[k]);
        if (bytes_ > LARGEST_PACKED) return false;
        for (const ArrowArray& child : owner->children)
            if (!measure(child)) return false;
        return true;
    }

    template <class T>
    T* take(int64_t n) noexcept {
        T* taken = reinterpret_cast<T*>(next_struct_);
        next_struct_ += static_cast<size_t>(n) * sizeof(T);
        return taken;
    }

    void move(const ArrowArray& from, ArrowArray* to) noexcept {
        const auto* owner = static_cast<const ArrayOwner*>(from.private_data);
        auto** buffers = take<const void*>(from.n_buffers);
        for (int64_t k = 0; k < from.n_buffers; ++k) {
            buffers[k] = owner->buffers[k];
            if (!owner->buffers[k] || BlockPool::is_zeros(owner->buffers[k])) continue;
            const size_t size = owner->sizes[k];
            std::memcpy(next_bytes_, owner->buffers[k], size);
            std::memset(next_bytes_ + size, 0, padded(size) - size);
            buffers[k] = next_bytes_;
            next_bytes_ += padded(size);
        }
        auto* children = take<ArrowArray>(from.n_children);
        auto** pointers = take<ArrowArray*>(from.n_children);
        for (int64_t k = 0; k < from.n_children; ++k) {
            pointers[k] = children + k;
            move(owner->children[static_cast<size_t>(k)], children + k);
        }
        *to = ArrowArray{from.length,  from.null_count, 0,       from.n_buffers, from.n_children, buffers,
                         pointers, nullptr,         release, batch_};
    }

    static void release(ArrowArray* array) noexcept {
        auto* batch = static_cast<PackedBatch*>(array->private_data);
        for (int64_t k = 0; k < array->n_children; ++k)
            if (array->children[k]->release) array->children[k]->release(array->children[k]);
        array->release = nullptr;
        if (batch->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) std::free(batch->raw);
    }

    size_t arrays_ = 0;
    size_t structs_ = 0;
    size_t bytes_ = 0;
    PackedBatch* batch_ = nullptr;
    uint8_t* next_struct_ = nullptr;
    uint8_t* next_bytes_ = nullptr;
};

inline void pack_array(ArrowArray* array) noexcept { Packer::pack(array); }

}  // namespace pgo
