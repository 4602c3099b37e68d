"""The drill: every attack and every fault that Noria promises to survive, applied to a real server. `make drill`."""
