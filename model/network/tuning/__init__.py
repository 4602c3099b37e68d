"""Times the compiled forms of a network's products and of its attention, for --tune. All give the same bits."""
