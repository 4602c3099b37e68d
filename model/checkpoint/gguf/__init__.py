"""GGUF files: their index, tokenizer and weights, read in place or converted to a directory."""
