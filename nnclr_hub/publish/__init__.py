"""Publishing: write model folders, convert foreign checkpoints, and upload to the Hub."""
