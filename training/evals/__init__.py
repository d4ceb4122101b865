"""Protocols that score an encoder; each yields (name, value)."""
