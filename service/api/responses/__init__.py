"""OpenAI's Responses API, stateless: it translates a request to the internal chat request, and writes its answers."""
