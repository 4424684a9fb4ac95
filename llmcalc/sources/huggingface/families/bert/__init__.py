"""Families of BERT and later encoders."""
