"""The store in a folder: SQLite is the truth, the index its cache.

store.py         EmbeddedStore; catalog.py: names and aliases of its collections
collection.py    EmbeddedCollection; resources.py: the files, index and threads of an open one
schema.py        the SQLite file of a collection; rows.py: items in its tables; log.py: its changes
filter_sql.py    filters as SQL; filters.py: the rows that pass one
writer.py        the thread that writes; maintenance.py: the thread that folds and saves the index
verify.py        checks of a collection; salvage.py: recovery from a damaged file
"""

from nnclr_hub.store.folder.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
