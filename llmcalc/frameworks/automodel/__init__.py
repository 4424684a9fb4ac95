"""NeMo-Automodel's YAML recipes for training and fine-tuning with FSDP2.

All of it may be changed without reading another program; a run is one of FSDP2, or of one device in plain PyTorch.
"""
