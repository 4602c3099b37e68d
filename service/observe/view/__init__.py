"""The engine and the requests as clients may see them: live events, places in the queue, estimates."""
