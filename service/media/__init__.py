"""Files of requests, images and audio: decoded in processes that may be lost, and remembered."""
