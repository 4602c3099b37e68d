"""One step: packs a batch of sequences, runs the network, samples the next tokens."""
