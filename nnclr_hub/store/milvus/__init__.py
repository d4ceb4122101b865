"""The store in Milvus; `docs/decisions/0008-milvus.md` describes how the servers behave.

store.py       MilvusStore: collections and aliases
collection.py  MilvusCollection: items, searches, maintenance
rows.py        items as rows, filters as expressions, kinds of index
connection.py  addresses, names, time limits, retries, translation of errors
"""

from nnclr_hub.store.milvus.store import MilvusStore

__all__ = ["MilvusStore"]
