"""From a place to pixels: sources, listing, labels, decoding in killable processes, channels, readers, tiles."""
