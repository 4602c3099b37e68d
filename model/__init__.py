"""The network and all that touches tensors. See docs/architecture.md."""
