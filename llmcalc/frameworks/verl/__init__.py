"""verl: launch commands of reinforcement learning, with Hydra's overrides."""
