"""Converts a Hugging Face `config.json` to a native description.

Each family has one file whose adapter reads a `Config`.

The facts come from the configuration and modelling classes of `transformers`: the fields, their defaults, and the
weights. No remote code is ever run: `auto_map` is ignored.

A family may be changed without reading the others; all of them use `config`, which reads fields, and `registry`, which
finds a family.
"""
