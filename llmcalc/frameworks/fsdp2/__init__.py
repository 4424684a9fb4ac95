"""Fully sharded data parallelism by torch's `fully_shard` (FSDP2), as torchtitan calls it.

`param_groups` gathers and reduces parameters, `lowering` puts the hooks of a group around its modules,
`with_tensor_parallel` runs the modules of a rank of tensor parallelism, `training` runs steps, `pipeline` and
`pipeline_replay` those of the stages of a pipeline, and `rank_memory` has the memory of a rank, the ranks that differ,
and the collective operations of a step.

Not modelled: layers that share parameters, adapters, autocast beside the mixed precision of `fully_shard`, the
optimizer in the backward pass, image and audio encoders, offloading to the host, and resharding to fewer ranks than all
(`reshard_after_forward=N`).

All of it may be changed without reading another framework.
"""
