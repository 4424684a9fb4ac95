"""Converts a Hugging Face `config.json` to a native description.

Each family has one file whose adapter reads a `Config`.

The facts come from the configuration and modelling classes of `transformers`: the fields, their defaults, and the
weights. No remote code is ever run: `auto_map` is ignored.

A config passes three files: `model_type` finds out whose it is, `registry` finds the family that reads this type, and
`description` puts the answer together with heads, encoders and remarks. A family may be changed without reading the
others; all of them use `config`, which reads fields.
"""
