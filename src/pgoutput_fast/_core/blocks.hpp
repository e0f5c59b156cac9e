// Memory for column buffers and records. A batch's buffers are as large as those of the batch before, so freed ones are kept:
// fresh memory would have to be cleared by the kernel page by page, which took a quarter of all time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace pgo {

constexpr size_t ALIGNMENT = 64;
// Copies may store whole vectors past the logical end, so every buffer has this much room behind it.
constexpr size_t SLACK = 64;

class BlockPool {
public:
    // At least `n` usable bytes, aligned, with SLACK behind them; `capacity` says how many it is.
    static uint8_t* allocate(size_t n, size_t* capacity) { return instance().take(n, capacity); }

    // `n` zero bytes; large ones cost nothing until somebody reads them.
    static uint8_t* allocate_zero(size_t n) {
        auto* raw = static_cast<uint8_t*>(std::calloc(1, n + 2 * ALIGNMENT + SLACK));
        if (!raw) throw std::bad_alloc();
        return place(raw, nullptr, 0, 0);
    }

    static void release(uint8_t* data) noexcept {
        if (!data) return;
        Header* header = reinterpret_cast<Header*>(data) - 1;
        // Extension modules each have a pool of their own: a block goes home to the one it came from.
        if (header->pool) header->pool->keep(data, header->size_class, header->capacity);
        else std::free(header->raw);
    }

private:
    struct Header {
        void* raw;
        BlockPool* pool;
        size_t size_class;
        size_t capacity;
    };
    static_assert(sizeof(Header) <= ALIGNMENT, "the header lies in the line before the data");

    static constexpr size_t KEPT_LIMIT = size_t{256} << 20;
    static constexpr size_t SMALLEST_KEPT = size_t{1} << 15;
    static constexpr size_t STEPS = 8;  // size classes per doubling: at most an eighth is wasted

    static BlockPool& instance() {
        static BlockPool* pool = new BlockPool;  // outlives the arrays that point to it at exit
        return *pool;
    }

    static uint8_t* place(uint8_t* raw, BlockPool* pool, size_t size_class, size_t capacity) noexcept {
        uintptr_t at = (reinterpret_cast<uintptr_t>(raw) + sizeof(Header) + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
        auto* data = reinterpret_cast<uint8_t*>(at);
        *(reinterpret_cast<Header*>(data) - 1) = Header{raw, pool, size_class, capacity};
        return data;
    }

    static uint8_t* fresh(size_t n, BlockPool* pool, size_t size_class) {
        auto* raw = static_cast<uint8_t*>(std::malloc(n + 2 * ALIGNMENT + SLACK));
        if (!raw) throw std::bad_alloc();
        return place(raw, pool, size_class, n);
    }

    uint8_t* take(size_t n, size_t* capacity) {
        if (n < SMALLEST_KEPT) {
            *capacity = n;
            return fresh(n, nullptr, 0);
        }
        // The next size of the form 2^k * (8 + j) / 8.
        unsigned bits = 63 - static_cast<unsigned>(__builtin_clzll(n - 1));
        size_t step = (size_t{1} << bits) / STEPS;
        size_t rounded = (n + step - 1) / step * step;
        size_t size_class = bits * STEPS + (rounded - (size_t{1} << bits)) / step;
        *capacity = rounded;
        {
            std::lock_guard<std::mutex> guard(mutex_);
            if (size_class < kept_.size() && !kept_[size_class].empty()) {
                uint8_t* data = kept_[size_class].back();
                kept_[size_class].pop_back();
                kept_bytes_ -= rounded;
                return data;
            }
        }
        return fresh(rounded, this, size_class);
    }

    void keep(uint8_t* data, size_t size_class, size_t capacity) noexcept {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            if (kept_bytes_ + capacity <= KEPT_LIMIT) {
                try {
                    if (size_class >= kept_.size()) kept_.resize(size_class + 1);
                    kept_[size_class].push_back(data);
                    kept_bytes_ += capacity;
                    return;
                } catch (const std::bad_alloc&) {
                }
            }
        }
        std::free((reinterpret_cast<Header*>(data) - 1)->raw);
    }

    std::mutex mutex_;
    std::vector<std::vector<uint8_t*>> kept_;
    size_t kept_bytes_ = 0;
};

// The same memory for a std::vector that grows large in every call.
template <class T>
struct Kept {
    using value_type = T;
    Kept() = default;
    template <class U>
    Kept(const Kept<U>&) noexcept {}
    T* allocate(size_t n) {
        size_t capacity;
        return reinterpret_cast<T*>(BlockPool::allocate(n * sizeof(T), &capacity));
    }
    void deallocate(T* p, size_t) noexcept { BlockPool::release(reinterpret_cast<uint8_t*>(p)); }
    bool operator==(const Kept&) const noexcept { return true; }
    bool operator!=(const Kept&) const noexcept { return false; }
};

}  // namespace pgo
