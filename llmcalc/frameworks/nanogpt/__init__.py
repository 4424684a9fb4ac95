"""nanoGPT: its configurations in Python, and its launch commands.

All of it may be changed without reading another program; its model is a description made of its keys.
"""
