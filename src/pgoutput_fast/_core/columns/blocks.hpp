// Memory for column buffers and records. Consecutive batches need buffers of the same sizes, so the pool keeps freed
// blocks and reuses them. The kernel clears fresh memory page by page, which took a quarter of the run time.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <vector>
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#endif
#ifdef __linux__
#define PGO_MAPPED_BLOCKS  // only Linux has mremap, which makes a block larger without a copy
#endif

namespace pgo {

constexpr size_t ALIGNMENT = 64;
// A copy may store whole vectors past the logical end, so every buffer has this many extra bytes after it.
constexpr size_t SLACK = 64;

class BlockPool {
public:
    // Returns an aligned block of at least `n` usable bytes, followed by SLACK bytes. `capacity` receives the actual
    // size.
    static uint8_t* allocate(size_t n, size_t* capacity) { return instance().take(n, capacity); }

    // Returns `n` zero bytes that nobody may write. All callers share one read-only mapping, which costs almost no
    // memory. Only a request larger than that mapping allocates memory of its own.
    static uint8_t* zeros(size_t n) {
        static uint8_t* const shared = make_zeros();
        if (shared && n <= ZEROS) return shared;
        auto* raw = static_cast<uint8_t*>(std::calloc(1, n + 2 * ALIGNMENT + SLACK));
        if (!raw) throw std::bad_alloc();
        return place(raw, Header{raw, nullptr, 0, 0, 0, 0});
    }

    // Whether a block is part of the shared zeros, which are never freed.
    static bool is_zeros(const void* data) noexcept {
        return !(reinterpret_cast<const Header*>(data) - 1)->raw;
    }

    // Returns a block for `n` bytes that begins with the first `used` bytes of `data`. `data` is freed, unless memory
    // runs out and this throws. If the pool keeps no block of that size, the block itself is made larger. For a large
    // block the kernel moves the pages, so old and new block never take memory at the same time.
    static uint8_t* grow(uint8_t* data, size_t used, size_t n, size_t* capacity) {
        if (!data) return allocate(n, capacity);
        return instance().enlarge(data, used, n, capacity);
    }

    static void release(uint8_t* data) noexcept {
        if (!data) return;
        Header* header = reinterpret_cast<Header*>(data) - 1;
        if (!header->raw) return;  // the shared zeros
        // Each extension module has a pool of its own. A block returns to the pool that it came from.
        if (header->pool) header->pool->keep(data, header->size_class, header->capacity);
        else give_back(*header);
    }

    // For tests: keeps the pool locked by this thread for some time.
    static void hold(unsigned milliseconds) {
        std::lock_guard<std::mutex> guard(instance().mutex_);
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    }

private:
    struct Header {
        void* raw;
        BlockPool* pool;
        size_t size_class;
        size_t capacity;
        size_t mapped;  // size in bytes if the block was mapped; 0 if it came from malloc
        size_t offset;  // from `raw` to the data
    };
    static_assert(sizeof(Header) <= ALIGNMENT, "the header lies in the line before the data");

    static constexpr size_t KEPT_LIMIT = size_t{256} << 20;  // of each extension module's pool
    static constexpr size_t SMALLEST_KEPT = size_t{1} << 15;
    // Blocks from this size on are mapped. malloc maps large blocks too, but only until the first of them is freed.
    // From then on it takes them from its heap, and a block that moves when it grows leaves a hole there. With 200
    // relations that have arrays, these holes took 35 MB.
    static constexpr size_t SMALLEST_MAPPED = size_t{1} << 16;
    static constexpr size_t STEPS = 8;  // size classes per doubling; at most one eighth of a block is unused

    struct Size {
        size_t size_class, capacity;
    };
    // Rounds up to a size of the form 2^k * (8 + j) / 8.
    static Size rounded(size_t n) noexcept {
        unsigned bits = 63 - static_cast<unsigned>(__builtin_clzll(n - 1));
        size_t step = (size_t{1} << bits) / STEPS;
        size_t up = (n + step - 1) / step * step;
        return {bits * STEPS + (up - (size_t{1} << bits)) / step, up};
    }

    static BlockPool& instance() {
        static BlockPool* pool = make();  // never freed: at exit, arrays may still point to it
        return *pool;
    }

    static BlockPool* make() {
        auto* pool = new BlockPool;
#if defined(__unix__) || defined(__APPLE__)
        // If the process forks while another thread has the lock, the child would get a pool that stays locked forever.
        // So the forking thread takes the lock itself, and both processes unlock it.
        if (pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                           [] { instance().mutex_.unlock(); })) {
            delete pool;
            throw std::bad_alloc();
        }
#endif
        return pool;
    }

    // The start of a block's data: aligned, with enough space before it for the header.
    static uint8_t* aligned(uint8_t* raw) noexcept {
        uintptr_t at = (reinterpret_cast<uintptr_t>(raw) + sizeof(Header) + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
        return reinterpret_cast<uint8_t*>(at);
    }

    static uint8_t* place(uint8_t* raw, const Header& header) noexcept {
        uint8_t* data = aligned(raw);
        Header* at = reinterpret_cast<Header*>(data) - 1;
        *at = header;
        at->offset = static_cast<size_t>(data - raw);
        return data;
    }

    // Completes a block that realloc may have moved. The offset from its start to the next aligned address may have
    // changed.
    static uint8_t* moved(uint8_t* raw, size_t before, size_t used, BlockPool* pool, size_t size_class,
                          size_t capacity) noexcept {
        const size_t now = static_cast<size_t>(aligned(raw) - raw);
        if (now != before && used) std::memmove(raw + now, raw + before, used);
        return place(raw, Header{raw, pool, size_class, capacity, 0, 0});
    }

    static uint8_t* fresh(size_t n, BlockPool* pool, size_t size_class) {
        const size_t total = n + 2 * ALIGNMENT + SLACK;
#ifdef PGO_MAPPED_BLOCKS
        if (n >= SMALLEST_MAPPED) {
            void* raw = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            // A process can have only about 65,000 mappings. After that limit, malloc may still have memory.
            if (raw != MAP_FAILED) return place(static_cast<uint8_t*>(raw), Header{raw, pool, size_class, n, total, 0});
        }
#endif
        auto* raw = static_cast<uint8_t*>(std::malloc(total));
        if (!raw) throw std::bad_alloc();
        return place(raw, Header{raw, pool, size_class, n, 0, 0});
    }

    static void give_back(const Header& header) noexcept {
#ifdef PGO_MAPPED_BLOCKS
        if (header.mapped) {
            munmap(header.raw, header.mapped);
            return;
        }
#endif
        std::free(header.raw);
    }

    uint8_t* take(size_t n, size_t* capacity) {
        if (n < SMALLEST_KEPT) {
            *capacity = n;
            return fresh(n, nullptr, 0);
        }
        const Size size = rounded(n);
        *capacity = size.capacity;
        if (uint8_t* data = kept_one(size)) return data;
        return fresh(size.capacity, this, size.size_class);
    }

    uint8_t* enlarge(uint8_t* data, size_t used, size_t n, size_t* capacity) {
        const Header old = *(reinterpret_cast<Header*>(data) - 1);
        const bool small = n < SMALLEST_KEPT;
        const Size size = small ? Size{0, n} : rounded(n);
        *capacity = size.capacity;
        if (uint8_t* other = small ? nullptr : kept_one(size)) {
            if (used) std::memcpy(other, data, used);
            release(data);
            return other;
        }
        const size_t total = size.capacity + 2 * ALIGNMENT + SLACK;
#ifdef PGO_MAPPED_BLOCKS
        if (old.mapped) {
            void* raw = mremap(old.raw, old.mapped, total, MREMAP_MAYMOVE);
            if (raw != MAP_FAILED)
                return place(static_cast<uint8_t*>(raw), Header{raw, this, size.size_class, size.capacity, total, 0});
        }
        if (old.mapped || size.capacity >= SMALLEST_MAPPED) {
            uint8_t* other = fresh(size.capacity, this, size.size_class);
            std::memcpy(other, data, used);
            give_back(old);
            return other;
        }
#endif
        auto* raw = static_cast<uint8_t*>(std::realloc(old.raw, total));
        if (!raw) throw std::bad_alloc();
        return moved(raw, old.offset, used, small ? nullptr : this, size.size_class, size.capacity);
    }

    static constexpr size_t ZEROS = size_t{8} << 20;

    // Returns null if the system cannot provide this memory.
    static uint8_t* make_zeros() noexcept {
#if defined(__unix__) || defined(__APPLE__)
        // The header gets a page of its own, because the pages after it must never be written.
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t size = page + ZEROS + SLACK;
        void* raw = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (raw == MAP_FAILED) return nullptr;
        uint8_t* data = static_cast<uint8_t*>(raw) + page;
        *(reinterpret_cast<Header*>(data) - 1) = Header{nullptr, nullptr, 0, 0, 0, 0};
        mprotect(raw, size, PROT_READ);
        return data;
#else
        return nullptr;
#endif
    }

    // Returns a kept block of that size class, or null.
    uint8_t* kept_one(Size size) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        if (size.size_class >= kept_.size() || kept_[size.size_class].empty()) return nullptr;
        uint8_t* data = kept_[size.size_class].back();
        kept_[size.size_class].pop_back();
        kept_bytes_ -= size.capacity;
        return data;
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
        give_back(*(reinterpret_cast<Header*>(data) - 1));
    }

    std::mutex mutex_;
    std::vector<std::vector<uint8_t*>> kept_;
    size_t kept_bytes_ = 0;
};

// A std::allocator over the pool, for a std::vector that grows large in every call.
template <class T>
struct PooledAllocator {
    using value_type = T;
    PooledAllocator() = default;
    template <class U>
    PooledAllocator(const PooledAllocator<U>&) noexcept {}
    T* allocate(size_t n) {
        size_t capacity;
        return reinterpret_cast<T*>(BlockPool::allocate(n * sizeof(T), &capacity));
    }
    void deallocate(T* p, size_t) noexcept { BlockPool::release(reinterpret_cast<uint8_t*>(p)); }
    bool operator==(const PooledAllocator&) const noexcept { return true; }
    bool operator!=(const PooledAllocator&) const noexcept { return false; }
};

}  // namespace pgo
