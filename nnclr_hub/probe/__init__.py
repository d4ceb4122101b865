"""Linear probes, k-nearest-neighbor classification and metrics on frozen features."""
