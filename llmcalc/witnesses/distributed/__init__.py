"""Memory and loss of real processes: FSDP2, tensor parallelism, pipeline parallelism and replicas."""
