"""Tokenizers: SentencePiece (`tokenizer.model`) and `tokenizers` (`tokenizer.json`), one file each."""
