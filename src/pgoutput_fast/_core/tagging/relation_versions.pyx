"""The relation versions of a stream. Compiled code refers to a version by a small number, its slot."""
from cython.operator cimport dereference
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libcpp.unordered_map cimport unordered_map
from libcpp.utility cimport pair

cimport cython

from pgoutput_fast._core.protocol.fields cimport same_bytes
from pgoutput_fast._core.tagging.stream_state cimport SLOT_UNKNOWN, set_text

from pgoutput_fast.catalog.builtin_types import is_built_in

# In `_forget_names`: the value in `named` of an oid without a remaining version so far.
cdef int32_t NAMELESS = -3


@cython.final
cdef class RelationVersions:
    def __cinit__(self):
        self.relations = []
        self.slots = {}

    def slot_of(self, relation, body=None):
        """Returns the slot of a relation's version; a new version gets a new slot. `body` is its wire form, if known.

        A version keeps its first description, even if Type messages give its columns' types other names later.
        """
        slot = self.slots.get(relation.version)
        if slot is not None:
            return slot
        slot = len(self.relations)
        # Resize first: if a later step fails, the next call resizes these lists again.
        self.bodies.resize(<size_t> slot + 1)
        self.ids.resize(<size_t> slot + 1)
        self.oids.resize(<size_t> slot + 1)
        self.widths.resize(<size_t> slot + 1)
        self.has_user_types.resize(<size_t> slot + 1)
        self.ids[slot] = <int64_t> relation.version
        self.oids[slot] = <uint32_t> relation.oid
        self.widths[slot] = <int32_t> len(relation.columns)
        set_text(self.bodies[slot], relation.wire_body() if body is None else body)
        self.has_user_types[slot] = any(not is_built_in(column.type_oid) for column in relation.columns)
        self.relations.append(relation)
        self._add_name(relation, slot)
        self.slots[relation.version] = slot
        return slot

    cdef int32_t slot_of_id(self, version) except -2:
        """Returns the slot of a version id, -1 if it is unknown."""
        return self.slots.get(version, -1)

    cdef int32_t slot_with_name(self, uint32_t oid) noexcept nogil:
        """Returns a slot whose relation has the name of the relation with this oid.

        Returns SLOT_UNKNOWN if there is none, or if versions of this oid have different names.
        """
        cdef unordered_map[uint32_t, int32_t].iterator known = self.named.find(oid)
        return SLOT_UNKNOWN if known == self.named.end() else dereference(known).second

    cdef bint is_repeated(self, int32_t slot, const uint8_t* body, int64_t size) noexcept nogil:
        """Whether the body equals the stored one and all its types are built in. Then it need not be parsed."""
        return not self.has_user_types[slot] and same_bytes(self.bodies[slot], body, size)

    # ---- names -----------------------------------------------------------------------------------------------------

    cdef int _add_name(self, relation, int32_t slot) except -1:
        """Stores the name of the relation with this oid: SLOT_UNKNOWN if its versions have different names."""
        cdef uint32_t oid = relation.oid
        cdef unordered_map[uint32_t, int32_t].iterator known = self.named.find(oid)
        cdef int32_t other
        if known == self.named.end():
            self.named.insert(pair[uint32_t, int32_t](oid, slot))
            return 0
        other = dereference(known).second
        if other != NAMELESS and (
            other < 0
            or self.relations[other].name != relation.name
            or self.relations[other].namespace != relation.namespace
        ):
            slot = SLOT_UNKNOWN
        dereference(known).second = slot
        return 0

    cdef int _forget_names(self, Py_ssize_t count) except -1:
        """Removes the effects of all versions but the first `count` from `named`. Allocates no memory."""
        cdef unordered_map[uint32_t, int32_t].iterator known
        cdef Py_ssize_t slot
        if count == len(self.relations):
            return 0
        for slot in range(count, len(self.relations)):
            known = self.named.find(<uint32_t> self.relations[slot].oid)
            if known != self.named.end():
                dereference(known).second = NAMELESS
        for slot in range(count):
            self._add_name(self.relations[slot], slot)
        for slot in range(count, len(self.relations)):
            known = self.named.find(<uint32_t> self.relations[slot].oid)
            if known != self.named.end() and dereference(known).second == NAMELESS:
                self.named.erase(known)
        return 0

    cdef int forget_after(self, Py_ssize_t count) except -1:
        """Forgets all versions but the first `count`.

        Memory may have run out, so only the last line allocates. It can fail safely: nothing refers to the
        versions that then remain.
        """
        cdef Py_ssize_t slot
        for slot in range(count, len(self.relations)):
            version = self.relations[slot].version
            if version in self.slots:
                del self.slots[version]
        self._forget_names(count)
        del self.relations[count:]
        return 0
