"""The store in Milvus, from a file to a cluster; `docs/decisions/0008-milvus.md` describes how the servers behave.

store.py        MilvusStore: collections and aliases; names.py: how names are encoded for Milvus
collection.py   MilvusCollection; rows.py: items as rows, and the schema; where.py: filters as expressions over facets
search.py       neighbors, by Milvus's index or by comparing with every vector
maintenance.py  the index, verify, repair, compact
client.py       the connection: time limits, retries, translation of errors
"""

from nnclr_hub.store.milvus.store import MilvusStore

__all__ = ["MilvusStore"]
