"""Anthropic's Messages API: it translates a request to the internal chat request, and writes its answers."""
