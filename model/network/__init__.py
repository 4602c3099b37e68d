"""The order of layers: transformer blocks, feed-forward and mixture of experts, and loading weights into them."""
