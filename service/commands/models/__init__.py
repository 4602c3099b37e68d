"""`noria pull`, `noria list` and `noria rm`: the models on this machine."""
