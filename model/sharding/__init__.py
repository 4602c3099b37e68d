"""How a model is shared between ranks: pure arithmetic on sizes and names. No torch."""
