"""The index: row ids by nearness, in memory; a cache that may be lost at any moment.

index.py       AnnIndex: what is searched, and how it changes under running searches
main_index.py  the part that never changes, by faiss;  kinds.py  which kind, and how it is built
deaths.py      what has died of it;  delta.py  what came since, by compare.py;  fold.py  the delta into a new main part
"""
