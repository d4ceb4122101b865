"""Names of files may be bytes that are not UTF-8. JSON, SQLite, Milvus and safetensors cannot hold those."""


def is_utf8(text: object) -> bool:
    """Return whether a path or another text is UTF-8; Python writes bytes that are not as halves of surrogates."""
    try:
        return str(text).encode() is not None
    except UnicodeEncodeError:
        return False
