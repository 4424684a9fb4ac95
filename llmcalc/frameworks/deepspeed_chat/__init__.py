"""DeepSpeed-Chat: the training scripts of DeepSpeedExamples."""
