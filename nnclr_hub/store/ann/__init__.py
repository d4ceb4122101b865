"""The index: row ids by nearness, in memory. It is a cache of the catalog and can be lost at any time.

index.py       AnnIndex: the part that is searched, and how it changes while searches run
main_index.py  the main part, which never changes; build.py builds, extends and calibrates it
delta.py       rows that were added since, compared one by one (compare.py), and deleted rows of the main part
fold.py        moves the delta into a new main part
"""
