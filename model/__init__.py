"""The network and all that touches tensors. See DESIGN in docs/architecture.md."""
