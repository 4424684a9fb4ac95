"""ZeRO as DeepSpeed runs it: what one rank holds (Rajbhandari 2019, arXiv:1910.02054)."""
