"""Plain PyTorch on several devices: DistributedDataParallel, tensor parallelism and pipelines.

All of it may be changed without reading another framework; the kernels are those of `simulator/profiles/eager`.
"""
