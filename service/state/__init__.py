"""The state of clients between requests: responses, conversations, and the events of streams."""
