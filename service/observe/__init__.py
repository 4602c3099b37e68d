"""The server at work as operators and clients see it: metrics, traces, logs of requests, and the live view."""
