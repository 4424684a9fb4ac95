"""Meta's llama-cookbook (llama-recipes), whose finetuning.py trains with FSDP 1 or on one device.

All of it may be changed without reading another program; a run is arguments of the Trainer.
"""
