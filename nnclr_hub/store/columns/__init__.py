"""Metadata by key in memory, for filters and counts: a cache of the catalog."""
