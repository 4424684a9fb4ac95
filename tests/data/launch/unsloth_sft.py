from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

length = 1024
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="meta-llama/Llama-3.2-1B-bnb-4bit", max_seq_length=length, load_in_4bit=True
)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "v_proj"])
options = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=8, optim="adamw_8bit")
trainer = SFTTrainer(model=model, args=options, max_seq_length=length)
trainer.train()
