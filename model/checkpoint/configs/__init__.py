"""Reading the fields of configuration files: what their formats share, and Mistral's params.json. No torch."""
