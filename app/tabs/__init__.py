"""The page's tabs, one a file."""
