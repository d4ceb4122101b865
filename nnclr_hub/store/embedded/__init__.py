"""The store in a folder: SQLite is the truth, the index its cache.

store.py        EmbeddedStore;  names.py  names and aliases
collection.py   EmbeddedCollection;  searching.py  a search in one view of the catalog
catalog.py      the SQLite files;  rows.py  items in their tables;  connections.py  to read by;  writer.py  to write by
snapshots.py    the index on disk;  recovery.py  how it comes back;  care.py, maintenance.py  what keeps it quick
verification.py whether all is well;  salvage.py  what is left of a damaged file
"""

from nnclr_hub.store.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
