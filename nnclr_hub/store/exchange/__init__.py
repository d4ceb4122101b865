"""Collections as files that other tools read: Parquet for items, safetensors for vectors.

transfer.py  export and import;  manifest.py  collection.json;  shards.py  the files of so many items each
"""

from nnclr_hub.store.exchange.transfer import export_collection, import_collection

__all__ = ["export_collection", "import_collection"]
