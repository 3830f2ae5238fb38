"""Where a lane's rows lie: arenas, their buffers, and what is written into a blob."""
