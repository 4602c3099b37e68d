"""Request fields that several dialects share. Knows pydantic and the errors that clients get, not the engine."""
