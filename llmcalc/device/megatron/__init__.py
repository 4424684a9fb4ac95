"""Memory of any rank of a Megatron run."""
