"""Images of requests: from data URLs to pixels. What decodes them is a process that may be lost."""
