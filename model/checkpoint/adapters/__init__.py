"""LoRA adapters in files: Hugging Face PEFT's and Mistral's own."""
