"""Launch files: arguments of Megatron-LM, torchtitan jobs, DeepSpeed configs, files of accelerate and the Trainer.

`read.read_launch` tells the kind by the contents. Each reader gives a `Launch`: the model where the file names one, the
layout, and the settings of the run. Nothing in a file is executed.
"""
