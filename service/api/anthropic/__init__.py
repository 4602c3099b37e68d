"""Anthropic's Messages API over the chat endpoint's walk: a request is translated, an answer written in their shape."""
