"""The page at `/`: its files and their routes."""
