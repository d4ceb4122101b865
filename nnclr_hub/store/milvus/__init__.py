"""The store in Milvus, from a file to a cluster; `docs/decisions/0008-milvus.md` says what the servers do.

store.py       MilvusStore: collections and aliases;  names.py  names as Milvus takes them
collection.py  MilvusCollection;  rows.py  items as rows, and the schema;  where.py  filters as expressions over facets
search.py      neighbors, by Milvus's index or by every vector;  care.py  the index, verifying, repairing, compacting
client.py      one connection: time limits, repeated calls, every failure one sentence
"""

from nnclr_hub.store.milvus.store import MilvusStore

__all__ = ["MilvusStore"]
