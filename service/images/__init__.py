"""Images of requests: from data URLs to pixels."""
