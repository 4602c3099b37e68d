"""Embeddings: prompts whose hidden states are pooled instead of continued."""
