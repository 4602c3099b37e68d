"""What a model is: its sizes and kinds, whatever files they were read from."""
