"""What runs beside a server: the load generator (`noria bench`) and the terminal chat (`noria chat`)."""
