"""The shell: trio, sockets, configuration and signals around the pure broker."""
