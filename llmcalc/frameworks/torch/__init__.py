"""Plain PyTorch on many devices: replicas, tensor parallelism and pipelines, by the kernels of one device.

All of it may be changed without reading another framework; the kernels are those of `simulator/profiles/eager`.
"""
