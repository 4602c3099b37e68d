"""`noria bench`: sends a workload to a server and summarizes what it measured."""
