"""What the service stores for its clients between requests: responses, conversations, and the events of streams."""
