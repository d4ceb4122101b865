"""The store in a folder: SQLite is the truth, the index its cache.

store.py         EmbeddedStore
names.py         names and aliases of collections, in the root catalog
collection.py    EmbeddedCollection
catalog.py       the SQLite files; rows.py: items in their tables; connections.py: for reading; writer.py: for writing
search.py        a search in one view of the catalog
snapshots.py     the index on disk; recovery.py: how it is restored; maintenance.py: when it is folded and saved
verification.py  checks of a collection; salvage.py: recovery from a damaged file
"""

from nnclr_hub.store.folder.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
