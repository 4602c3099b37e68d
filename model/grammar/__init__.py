"""Grammars compiled and followed token by token, in processes of their own that may be killed."""
