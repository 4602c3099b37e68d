"""GGUF files: their index, tokenizer and weights, read in place."""
