"""Export and import of collections, in formats that other tools read: Parquet for items, safetensors for vectors.

transfer.py  export and import
files.py     the files, and collection.json, which lists them
"""

from nnclr_hub.store.exchange.transfer import export_collection, import_collection

__all__ = ["export_collection", "import_collection"]
