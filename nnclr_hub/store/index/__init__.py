"""The index: row ids by nearness, in memory. It is a cache of the SQLite file and can be lost at any time.

main.py      the rows that faiss searches, which never change
state.py     the index after one commit, and the newest of these states
build.py     builds, extends and calibrates a main part
fold.py      moves recent rows into a new main part, and when; snapshot.py keeps it on disk
"""
