"""Endpoints: the code that all share, and one folder for each dialect or family of endpoints."""
