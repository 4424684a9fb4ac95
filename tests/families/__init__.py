"""Small configs of every family, one file for each adapter:
what `SHAPES` says is read, and built by transformers too.
"""
