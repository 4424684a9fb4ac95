from trl import GRPOConfig
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-0.5B", max_seq_length=512, load_in_4bit=False)
model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing=True)
options = GRPOConfig(per_device_train_batch_size=4, max_prompt_length=256, max_completion_length=512 - 256)
