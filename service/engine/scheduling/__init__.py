"""The order in which waiting sequences are admitted."""
