"""nanoGPT: its configurations in Python, and its launch commands."""
