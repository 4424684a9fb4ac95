"""Families whose classes are code of the model's own repository, read from its published source and never run."""
