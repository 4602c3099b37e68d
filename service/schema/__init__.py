"""Request fields that several dialects share. Knows pydantic, but neither HTTP nor the engine."""
