"""The tabs of the page, one per module."""
