"""The store in a folder: SQLite is the truth, the index its cache.

store.py         EmbeddedStore; catalog.py: names and aliases of its collections
collection.py    EmbeddedCollection; resources.py: what an open one has
schema.py        the SQLite file of a collection; rows.py: items in its tables; log.py: its changes
connections.py   connections for reading; writer.py: the thread that writes; filters.py: rows that pass a filter
recovery.py      how an index is restored; maintenance.py: the thread that folds and saves it
verify.py        checks of a collection; salvage.py: recovery from a damaged file
"""

from nnclr_hub.store.folder.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
