"""The HTTP service. Never imports torch: tensors live in the engine process."""
