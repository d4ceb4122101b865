"""Rendered images of about 40 kinds, to try everything without a network and to test inspection against the truth."""
