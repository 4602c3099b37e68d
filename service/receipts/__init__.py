"""Receipts: signed hashes of a request, of what computed it and of its answer, by which the answer can be checked."""
