"""The service: embeddings and retrieval over REST."""
