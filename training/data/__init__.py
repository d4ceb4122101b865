"""Images for training: files, decoded packs, batches, augmentation."""
