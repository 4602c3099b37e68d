"""The audio encoder (Whisper, arXiv 2212.04356, in Voxtral): the mel spectrum to embeddings of the text model."""
