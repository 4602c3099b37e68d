"""Audio from files to mel spectra, in a process of its own. No torch."""
