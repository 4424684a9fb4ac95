from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained(model_name="unsloth/Llama-3.2-1B", load_in_4bit=True)
