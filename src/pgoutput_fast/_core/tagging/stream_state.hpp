// The state of a stream at one position: the open transactions, and the relations and types that messages described in
// them. Also the records of past events. This is plain data: tagging/transactions.pyx and tagging/tag.pyx change it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "columns/buffer.hpp"
#include "tagging/record_log.hpp"
#include "tagging/seen_lsns.hpp"
#include "tagging/shared_map.hpp"

namespace pgo {

// Null among int64 values. No LSN, xid or ordinal has this value.
constexpr int64_t NONE64 = std::numeric_limits<int64_t>::min();

// The current relation version of an oid, and the ordinal of the Relation message that described it. `slot` is the
// number of the version, or one of the negative values below.
struct RelationDescription {
    int32_t slot = 0;
    int64_t seq = 0;
    bool operator==(const RelationDescription& other) const { return slot == other.slot && seq == other.seq; }
};
constexpr int32_t SLOT_UNKNOWN = -1;  // no Relation message described it
constexpr int32_t SLOT_LOST = -2;     // a Relation message that described it, or may have, was unreadable

struct ScopedRelation {
    uint32_t oid = 0;
    uint32_t subxid = 0;
    RelationDescription known;
};

struct TypeName {
    std::string name_space;
    std::string name;
    int64_t seq = 0;
    bool operator==(const TypeName& other) const {
        return seq == other.seq && name_space == other.name_space && name == other.name;
    }

    void swap(TypeName& other) noexcept { std::swap(*this, other); }
};

struct ScopedType {
    uint32_t oid = 0;
    uint32_t subxid = 0;
    TypeName type;
};

// The descriptions by Relation or Type messages of one streamed transaction. Per oid: the last description in every
// subtransaction, in message order. Per subtransaction: the oids that it described, because its rollback removes these
// descriptions.
template <class S>
struct ScopedDescriptions {
    struct OfOid {
        std::map<int64_t, S> in_order;
        std::unordered_map<uint32_t, int64_t> key_of;  // by subtransaction: its key in `in_order`
    };
    std::unordered_map<uint32_t, OfOid> by_oid;
    std::unordered_map<uint32_t, std::vector<uint32_t>> oids_of;
    int64_t last_key = 0;

    const S* last(uint32_t oid) const {
        auto found = by_oid.find(oid);
        return found == by_oid.end() ? nullptr : &found->second.in_order.rbegin()->second;
    }
    void add(const S& description) {
        OfOid& known = by_oid[description.oid];
        if (!drop(known, description.subxid)) oids_of[description.subxid].push_back(description.oid);
        known.in_order.emplace_hint(known.in_order.end(), ++last_key, description);
        known.key_of[description.subxid] = last_key;
    }
    void forget(uint32_t subxid) {
        auto described = oids_of.find(subxid);
        if (described == oids_of.end()) return;
        for (uint32_t oid : described->second) {
            auto known = by_oid.find(oid);
            drop(known->second, subxid);
            if (known->second.in_order.empty()) by_oid.erase(known);
        }
        oids_of.erase(described);
    }
    std::vector<S> last_of_each() const {
        std::vector<S> found;
        for (const auto& entry : by_oid) found.push_back(entry.second.in_order.rbegin()->second);
        return found;
    }
    std::vector<S> all() const {
        std::vector<S> found;
        for (const auto& entry : by_oid)
            for (const auto& description : entry.second.in_order) found.push_back(description.second);
        return found;
    }

private:
    // Returns false if the subtransaction did not describe this oid.
    static bool drop(OfOid& known, uint32_t subxid) {
        auto key = known.key_of.find(subxid);
        if (key == known.key_of.end()) return false;
        known.in_order.erase(key->second);
        known.key_of.erase(key);
        return true;
    }
};

struct StreamDescriptions {
    ScopedDescriptions<ScopedRelation> relations;
    ScopedDescriptions<ScopedType> types;
    std::set<uint32_t> unread;  // subtransactions with a Relation message whose oid was unreadable
};

// A transaction that has not ended. It is streamed in blocks, sent as a whole, or prepared.
struct Transaction {
    int64_t txn = NONE64;
    uint32_t xid = 0;
    int64_t commit_lsn = NONE64;
    int64_t commit_timestamp = NONE64;
    std::string gid;
    int64_t prepare_end_lsn = NONE64;
    int64_t prepare_timestamp = NONE64;
    bool doubtful = false;  // a message that may have ended it, or rolled back a part of it, was unreadable
    int64_t prepared = 0;   // counts the prepared transactions; see StreamState::perhaps_ended
    bool has_origin = false;
    std::string origin;
    int64_t origin_lsn = NONE64;

    void swap(Transaction& other) noexcept { std::swap(*this, other); }
    // Begins a transaction. Only its key and xid are known.
    void begin(int64_t key, uint32_t its_xid) {
        txn = key;
        xid = its_xid;
        commit_lsn = commit_timestamp = prepare_end_lsn = prepare_timestamp = origin_lsn = NONE64;
        doubtful = has_origin = false;
        prepared = 0;
        gid.clear();
        origin.clear();
        descriptions_.reset();
    }
    const RelationDescription* relation(uint32_t oid) const {
        const ScopedRelation* description = descriptions_ ? descriptions_->relations.last(oid) : nullptr;
        return description ? &description->known : nullptr;
    }
    const TypeName* type(uint32_t oid) const {
        const ScopedType* description = descriptions_ ? descriptions_->types.last(oid) : nullptr;
        return description ? &description->type : nullptr;
    }
    void learn(const ScopedRelation& description) { own(descriptions_).relations.add(description); }
    void learn(const ScopedType& description) { own(descriptions_).types.add(description); }
    // Removes the descriptions in a subtransaction that was rolled back: its DDL has no effect.
    void forget(uint32_t subxid) {
        if (!descriptions_) return;
        const StreamDescriptions& known = *descriptions_;
        if (!known.relations.oids_of.count(subxid) && !known.types.oids_of.count(subxid) &&
            !known.unread.count(subxid))
            return;
        own(descriptions_).relations.forget(subxid);
        own(descriptions_).types.forget(subxid);
        own(descriptions_).unread.erase(subxid);
    }
    // Records an unreadable Relation message, which may have been about any relation. After it, the transaction knows
    // only the relations that it describes again.
    void miss_relation(uint32_t subxid) { own(descriptions_).unread.insert(subxid); }
    bool misses_relations() const { return descriptions_ && !descriptions_->unread.empty(); }
    std::vector<uint32_t> unread() const {
        if (!descriptions_) return {};
        return std::vector<uint32_t>(descriptions_->unread.begin(), descriptions_->unread.end());
    }
    // last_* returns the descriptions valid at the transaction's end, one per oid. all_* returns all of them in message
    // order.
    std::vector<ScopedRelation> last_relations() const {
        if (!descriptions_) return {};
        return descriptions_->relations.last_of_each();
    }
    std::vector<ScopedType> last_types() const {
        if (!descriptions_) return {};
        return descriptions_->types.last_of_each();
    }
    std::vector<ScopedRelation> all_relations() const {
        if (!descriptions_) return {};
        std::vector<ScopedRelation> all = descriptions_->relations.all();
        std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.known.seq < b.known.seq; });
        return all;
    }
    std::vector<ScopedType> all_types() const {
        if (!descriptions_) return {};
        std::vector<ScopedType> all = descriptions_->types.all();
        std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.type.seq < b.type.seq; });
        return all;
    }

private:
    std::shared_ptr<StreamDescriptions> descriptions_;
};

enum Context : uint8_t { OUTSIDE = 0, PLAIN = 1, PREPARING = 2, STREAMING = 3 };

struct StreamState {
    int64_t next_seq = 0;
    Context context = OUTSIDE;
    bool lost = false;             // between an unreadable boundary message and the next one
    bool bad_type = false;         // a Type message was unreadable: the next Relation message may depend on it
    bool session_starts = false;   // a new session begins with the next message
    SeenLsns messages;             // of non-transactional logical messages: a server repeats some of them
    int64_t commit_lsn = 0, commit_end_lsn = 0;  // of the last commit of any kind
    Transaction current;           // in PLAIN and PREPARING; in STREAMING only its xid is set
    SharedMap<Transaction> streamed;  // by xid

    // Prepared transactions by xid. A prepared transaction is void if a new transaction with the same xid begins or is
    // complete.
    const SharedMap<Transaction>& prepared() const { return prepared_; }
    void prepare(const Transaction& transaction, bool doubted = false) {
        end_prepared(transaction.xid);
        Transaction& added = prepared_[transaction.xid];
        added = transaction;
        added.prepared = doubted ? 0 : ++prepared_count_;
        numbers_by_gid_[hash_of(transaction.gid)].emplace(added.prepared, transaction.xid);
    }
    void end_prepared(uint32_t xid) {
        const Transaction* transaction = prepared_.find(xid);
        if (!transaction) return;
        const uint32_t hash = hash_of(transaction->gid);
        Numbered& numbered = numbers_by_gid_[hash];
        numbered.erase({transaction->prepared, xid});
        if (numbered.empty()) numbers_by_gid_.erase(hash);
        prepared_.erase(xid);
    }
    // Message `seq` was unreadable. It may have ended any open stream, rolled back any subtransaction of one, or ended
    // any prepared transaction. So the outcomes of all of these are unknown.
    void doubt(int64_t seq) {
        streams_doubted_at_ = seq;
        doubted_up_to_ = prepared_count_;
    }
    bool is_doubtful(const Transaction& stream) const { return stream.doubtful || stream.txn < streams_doubted_at_; }
    bool perhaps_ended(const Transaction& transaction) const { return transaction.prepared <= doubted_up_to_; }
    // The xids of prepared transactions with this gid that may have ended.
    std::vector<uint32_t> doubted_with_gid(const std::string& gid) const {
        std::vector<uint32_t> found;
        if (const Numbered* numbered = numbers_by_gid_.find(hash_of(gid)))
            for (auto each = numbered->begin(); each != numbered->end() && each->first <= doubted_up_to_; ++each)
                if (prepared_.find(each->second)->gid == gid) found.push_back(each->second);
        return found;
    }

    const SharedMap<RelationDescription>& relations() const { return relations_; }
    const SharedMap<TypeName>& types() const { return types_; }
    void describe(uint32_t oid, RelationDescription known) { relations_[oid] = known; }
    void name_type(uint32_t oid, const TypeName& type) { types_[oid] = type; }
    // Relation messages before message `seq` are no longer trusted. A relation is lost until it is described again.
    void lose_relations(int64_t seq) { relations_lost_at_ = seq; }
    int64_t relations_lost_at() const { return relations_lost_at_; }
    int32_t slot_of(const RelationDescription& known) const {
        return known.seq < relations_lost_at_ ? SLOT_LOST : known.slot;
    }
    // Like lose_relations, after messages were lost. They may have been Relation messages of any open stream, so an
    // open stream knows only the relations that it describes again.
    void lose_messages(int64_t seq) { relations_lost_at_ = streams_lost_at_ = seq; }
    bool missed_messages(const Transaction& stream) const { return stream.txn < streams_lost_at_; }
    bool misses_relations(const Transaction& stream) const {
        return missed_messages(stream) || stream.misses_relations();
    }

    const RelationDescription* relation(uint32_t oid) const { return relations_.find(oid); }
    const TypeName* type(uint32_t oid) const { return types_.find(oid); }
    // The open streams and the open plain transaction, in the order of their beginning.
    std::vector<Transaction> unfinished() const {
        std::vector<Transaction> found;
        for (uint32_t xid : streamed.keys()) {
            found.push_back(*streamed.find(xid));
            found.back().doubtful = is_doubtful(found.back());
        }
        if (context == PLAIN || context == PREPARING) found.push_back(current);
        std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.txn < b.txn; });
        return found;
    }
    void swap(StreamState& other) noexcept {
        static_assert(std::is_nothrow_move_constructible<StreamState>::value, "to undo a call takes no memory");
        std::swap(*this, other);
    }
    // Applies the descriptions of a committed stream. They are now valid everywhere, except where a later message
    // outside of the stream described the same oid.
    void promote(const Transaction& transaction) {
        for (const ScopedRelation& description : transaction.last_relations()) {
            const RelationDescription* plain = relation(description.oid);
            if (!plain || plain->seq < description.known.seq) describe(description.oid, description.known);
        }
        for (const ScopedType& description : transaction.last_types()) {
            const TypeName* plain = type(description.oid);
            if (!plain || plain->seq < description.type.seq) name_type(description.oid, description.type);
        }
    }

private:
    static uint32_t hash_of(const std::string& gid) { return static_cast<uint32_t>(std::hash<std::string>()(gid)); }

    SharedMap<Transaction> prepared_;
    using Numbered = std::set<std::pair<int64_t, uint32_t>>;
    SharedMap<Numbered> numbers_by_gid_;  // numbers and xids of prepared transactions, by a hash of the gid
    int64_t prepared_count_ = 0;          // number of transactions prepared so far
    int64_t doubted_up_to_ = 0;           // prepared transactions up to this number may have ended
    // Relations and transactions from before these messages are not trusted. Only ordinals are stored instead of marks
    // on relations or streams, so an unreadable message costs the same with any number of them.
    int64_t relations_lost_at_ = NONE64, streams_lost_at_ = NONE64, streams_doubted_at_ = NONE64;
    SharedMap<RelationDescription> relations_;
    SharedMap<TypeName> types_;
};

// The transaction that a message belongs to. It is the same for several consecutive messages. For a new field, see
// schema/metadata_columns.py.
struct MessageScope {
    int64_t txn = NONE64;
    int64_t xid = NONE64;
    int64_t subxid = NONE64;
    int64_t commit_lsn = NONE64;
    int64_t commit_timestamp = NONE64;
    bool in_stream = false;
};

// ---- records: each is one row of a table beside the changes. Their strings are in Records::text. ----

struct Slice {
    int64_t offset = 0;
    int64_t length = -1;  // -1: null
};

struct BoundaryRecord {
    int64_t seq = 0, txn = NONE64, xid = NONE64, subxid = NONE64;
    int64_t lsn = NONE64, end_lsn = NONE64, timestamp = NONE64, prepare_timestamp = NONE64;
    int64_t origin_lsn = NONE64;
    Slice gid, origin;
    uint8_t kind = 0;
    int8_t first_segment = -1;
};

// Every transaction has two of these records, and most of their values are null. A record with only the usual values is
// written as these values. Any other record is written as a mask and the values that are not null.
template <>
struct RecordForm<BoundaryRecord> {
    static constexpr int USUAL = 6, VALUES = 13;
    static constexpr size_t MOST = 5 + (VALUES + 1) * sizeof(int64_t);
    static uint8_t* write(uint8_t* to, const BoundaryRecord& b) noexcept {
        const bool usual = b.subxid == NONE64 && b.prepare_timestamp == NONE64 && b.origin_lsn == NONE64 &&
                           b.gid.length < 0 && b.origin.length < 0;
        to[0] = b.kind;
        to[1] = static_cast<uint8_t>(b.first_segment);
        to[2] = usual;
        const int64_t values[VALUES] = {
            b.seq, b.txn, b.xid, b.lsn, b.end_lsn, b.timestamp, b.subxid, b.prepare_timestamp,
            b.origin_lsn, b.gid.offset, b.gid.length, b.origin.offset, b.origin.length};
        if (!usual) return write_some(to + 3, values, VALUES, NONE64);
        std::memcpy(to + 3, values, USUAL * sizeof(int64_t));
        return to + 3 + USUAL * sizeof(int64_t);
    }
    static const uint8_t* read(const uint8_t* from, BoundaryRecord& b) noexcept {
        int64_t values[VALUES] = {0, 0, 0, 0, 0, 0, NONE64, NONE64, NONE64, 0, -1, 0, -1};
        const uint8_t* end = from + 3 + USUAL * sizeof(int64_t);
        if (from[2]) std::memcpy(values, from + 3, USUAL * sizeof(int64_t));
        else end = read_some(from + 3, values, VALUES, NONE64);
        b = BoundaryRecord{
            values[0], values[1], values[2], values[6], values[3], values[4], values[5], values[7], values[8],
            {values[9], values[10]}, {values[11], values[12]}, from[0], static_cast<int8_t>(from[1])};
        return end;
    }
};

struct OutcomeRecord {
    int64_t txn = 0, subxid = NONE64, at_seq = 0, commit_lsn = NONE64, commit_timestamp = NONE64;
    bool committed = false;
};

template <>
struct RecordForm<OutcomeRecord> {
    static constexpr int USUAL = 4, VALUES = 5;
    static constexpr size_t MOST = 4 + (VALUES + 1) * sizeof(int64_t);
    static uint8_t* write(uint8_t* to, const OutcomeRecord& o) noexcept {
        const int64_t values[VALUES] = {o.txn, o.at_seq, o.commit_lsn, o.commit_timestamp, o.subxid};
        to[0] = o.committed;
        if (!o.committed || o.subxid != NONE64) {
            to[0] = static_cast<uint8_t>(to[0] | 2);
            return write_some(to + 1, values, VALUES, NONE64);
        }
        std::memcpy(to + 1, values, USUAL * sizeof(int64_t));
        return to + 1 + USUAL * sizeof(int64_t);
    }
    static const uint8_t* read(const uint8_t* from, OutcomeRecord& o) noexcept {
        int64_t values[VALUES] = {0, 0, 0, 0, NONE64};
        const uint8_t* end = from + 1 + USUAL * sizeof(int64_t);
        if (from[0] & 2) end = read_some(from + 1, values, VALUES, NONE64);
        else std::memcpy(values, from + 1, USUAL * sizeof(int64_t));
        o = OutcomeRecord{values[0], values[4], values[1], values[2], values[3], (from[0] & 1) != 0};
        return end;
    }
};

struct TruncateRecord {
    int64_t seq = 0, txn = NONE64;
    int64_t first = 0, count = 0;  // in Records::oids
    bool cascade = false, restart_identity = false;
};

struct MessageRecord {
    int64_t seq = 0, lsn = NONE64, txn = NONE64, xid = NONE64;
    Slice prefix, content;
    bool transactional = false;
};

struct RejectRecord {
    int64_t seq = 0, lsn = NONE64, byte_offset = NONE64, type_oid = NONE64;
    int32_t slot = SLOT_UNKNOWN;  // of the relation version, if known
    int32_t column = -1;
    uint8_t change_type = 0xff;
    uint8_t format = 0;  // 't', 'b' or 0 for a whole message
    uint8_t reason = 0;
    int32_t described = -1, sent = -1;  // cell counts of the relation and of the tuple, if they differ
    Slice raw;
};

struct Records {
    RecordLog<BoundaryRecord> boundaries;
    RecordLog<OutcomeRecord> outcomes;
    RecordLog<TruncateRecord> truncates;
    RecordLog<MessageRecord> messages;
    std::vector<RejectRecord, PooledAllocator<RejectRecord>> rejects;
    std::vector<int64_t, PooledAllocator<int64_t>> oids;
    std::vector<int64_t> unknown_outcomes;  // txn of transactions with unknown outcome
    Buffer text;

    void swap(Records& other) noexcept { std::swap(*this, other); }
    const uint8_t* bytes_of(const Slice& slice) const noexcept { return text.data() + slice.offset; }
    Slice keep(const uint8_t* p, size_t n) {
        Slice s{static_cast<int64_t>(text.size()), static_cast<int64_t>(n)};
        text.append(p, n);
        return s;
    }
    void drop_rejects() noexcept {
        rejects.clear();
        text.set_size(0);
    }
    // Moves the rejects from `source`.
    void take_rejects(Records& source) {
        if (source.rejects.empty()) return;
        const int64_t moved = static_cast<int64_t>(text.size());
        for (RejectRecord reject : source.rejects) {
            reject.raw.offset += moved;
            rejects.push_back(reject);
        }
        text.append(source.text.data(), source.text.size());
        source.drop_rejects();
    }
};

}  // namespace pgo
