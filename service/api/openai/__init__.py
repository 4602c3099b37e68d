"""OpenAI's models, completions and chat completions: routes, request fields, and the shape of answers."""
