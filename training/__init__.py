"""The pretraining program: NNCLR and its baselines on a folder of unlabeled images."""
