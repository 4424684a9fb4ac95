"""DeepSpeed-Chat: the training scripts of DeepSpeedExamples.

All of it may be changed without reading another program; a run is a DeepSpeed config and a few settings.
"""
