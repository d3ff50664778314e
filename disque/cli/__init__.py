"""The tool `disque`: any command of the server, and what people who run queues do with several of them."""
