"""Families of Llama and dense decoders with similar layers."""
