"""What clients may see of the engine and of their requests: live events, places in the queue, estimates."""
