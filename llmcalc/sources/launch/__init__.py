"""Launch files that people run: Megatron-LM arguments, torchtitan jobs, DeepSpeed configs, accelerate and Trainer files.

`read.read_launch` tells the kind by the contents. Each reader gives a `Launch`: the model where the file names one, the
layout, and the settings of the run. Nothing in a file is executed.
"""
