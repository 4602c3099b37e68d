"""Audio of requests: from files to mel spectra."""
