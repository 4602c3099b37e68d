"""Tokenizers: SentencePiece (`tokenizer.model`), `tokenizers` (`tokenizer.json`) and `tekken.json`, one file each."""
