"""Decoders known for their mixture of experts."""
