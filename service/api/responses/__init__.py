"""OpenAI's Responses API, stateless, over the chat endpoint's walk: a request is translated, an answer written anew."""
