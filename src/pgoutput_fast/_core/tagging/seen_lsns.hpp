// Which non-transactional logical messages came before: a bounded set of their LSNs.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tagging/shared_map.hpp"

namespace pgo {

// The largest distinct LSNs of all that were added, and the floor: the largest of the others. The order in which they
// come does not matter, so what stretches of a stream saw may be put together. Copies share the set until one adds to it.
class SeenLsns {
public:
    static constexpr int64_t MOST = 1024;

    SeenLsns() = default;
    explicit SeenLsns(int64_t floor) : floor_(floor) {}
    // False if it is among them, or not above the floor: whether it came is not known any more there.
    bool add(int64_t lsn) {
        if (lsn <= floor_) return false;
        if (lsns_) {
            auto place = std::lower_bound(lsns_->begin() + gone_, lsns_->end(), lsn);
            if (place != lsns_->end() && *place == lsn) return false;
        }
        std::vector<int64_t>& lsns = own(lsns_);
        lsns.insert(std::lower_bound(lsns.begin() + gone_, lsns.end(), lsn), lsn);
        if (lsns.end() - (lsns.begin() + gone_) > MOST) floor_ = *(lsns.begin() + gone_++);
        // Many at a time, so that one costs little where they ascend.
        if (gone_ == MOST) {
            lsns.erase(lsns.begin(), lsns.begin() + gone_);
            gone_ = 0;
        }
        return true;
    }
    int64_t floor() const noexcept { return floor_; }
    // In ascending order.
    std::vector<int64_t> lsns() const {
        return lsns_ ? std::vector<int64_t>(lsns_->begin() + gone_, lsns_->end()) : std::vector<int64_t>();
    }

private:
    int64_t floor_ = 0;
    std::shared_ptr<std::vector<int64_t>> lsns_;
    std::ptrdiff_t gone_ = 0;  // that many at its front are let go of
};

}  // namespace pgo
