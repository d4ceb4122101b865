"""Files to batches of augmented views."""
