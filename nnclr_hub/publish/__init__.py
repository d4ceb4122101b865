"""Where weights go: model folders."""
