"""The image encoder (Pixtral, arXiv 2410.07073): pixels of an image to embeddings of the text model."""
