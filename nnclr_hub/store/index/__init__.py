"""The index: row ids by nearness, in memory. It is a cache of the catalog and can be lost at any time.

state.py       the index after one commit, and the newest of these states
main_index.py  the part that faiss searches, which never changes; build.py builds, extends and calibrates it
fold.py        moves recent rows into a new main part; snapshot.py keeps that on disk
transform.py   the transform of the vectors; compare.py: exhaustive comparison
"""
