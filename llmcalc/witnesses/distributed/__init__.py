"""The memory and the loss of real processes that share a model: FSDP2, tensor parallelism, a pipeline, replicas."""
