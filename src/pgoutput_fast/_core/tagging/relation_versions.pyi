from pgoutput_fast.catalog.relations import Relation

class RelationVersions:
    relations: list[Relation]
    def slot_of(self, relation: Relation, body: bytes | None = None) -> int: ...
