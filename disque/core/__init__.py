"""The pure engine: jobs, queues and the rules by which copies come together. No clock, dice, files or sockets."""
