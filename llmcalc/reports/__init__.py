"""Answers as data and tables: one file per command builds both, and `formats` writes them.

Columns, notes and words of a table may be changed without reading elsewhere (the goldens show what moved); a key of a
document is public and is described in `docs/documents.toml`.
"""
