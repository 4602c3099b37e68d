"""The API keys: which there are, what each may do, and what it has used."""
