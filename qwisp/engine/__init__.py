"""The lane engine: the scheduler driven by real MLX arrays. The only place that imports mlx."""
