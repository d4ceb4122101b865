"""Where weights come from: the registry, the sources, and the model folder."""
