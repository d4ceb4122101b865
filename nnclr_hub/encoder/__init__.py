"""Pixels to vectors."""
