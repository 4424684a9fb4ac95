"""Llama and the dense decoders that follow its layer."""
