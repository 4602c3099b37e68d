"""`noria receipts`, `noria verify` and `noria check`: keys, and answers that are computed again."""
