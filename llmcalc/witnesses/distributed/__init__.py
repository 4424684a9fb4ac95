"""Memory and loss of real processes: FSDP2, tensor parallelism, pipeline parallelism and replicas.

How processes are started and measured may be changed without reading the simulation with which they are compared.
"""
