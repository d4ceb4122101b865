"""Vectors to labels."""
