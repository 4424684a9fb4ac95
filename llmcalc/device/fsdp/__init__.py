"""Fully sharded data parallelism as torch's `fully_shard` runs it (FSDP2): what one rank holds, and what ranks send."""
