"""What operators and clients see of the server at work: metrics, traces, logs of requests, and the live view."""
