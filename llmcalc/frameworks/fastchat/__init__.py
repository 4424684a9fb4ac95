"""FastChat's training script, and Qwen's, which is made after it."""
