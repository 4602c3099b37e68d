"""Messages to token ids: Mistral's own formats and Jinja templates, with their variables and control tokens."""
