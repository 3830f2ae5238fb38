"""From a folder, a file or a seed to arrays."""
