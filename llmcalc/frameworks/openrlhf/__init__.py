"""OpenRLHF: launch commands of reinforcement learning and of fine-tuning."""
