"""Families whose classes are code in the model's own repository, which is read but never run."""
