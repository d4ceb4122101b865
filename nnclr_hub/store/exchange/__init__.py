"""Export and import of collections, in formats that other tools read: Parquet for items, safetensors for vectors.

transfer.py  export and import
manifest.py  collection.json, which lists the files
shards.py    the files
"""

from nnclr_hub.store.exchange.transfer import export_collection, import_collection

__all__ = ["export_collection", "import_collection"]
