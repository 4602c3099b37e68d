"""OpenAI's endpoints for speech: transcripts and translations of a recording."""
