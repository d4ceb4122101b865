"""The index: row ids by nearness, in memory. It is a cache of the SQLite file and can be lost at any time.

main.py      the rows that faiss searches, which never change
state.py     the index after one commit, and the newest of these states
fold.py      builds main parts, and moves recent rows into them; snapshot.py keeps one on disk
"""
