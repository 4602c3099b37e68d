"""Ollama's API: it translates a request to the internal one, and writes its answers as lines of JSON."""
