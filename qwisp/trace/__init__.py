"""Request traces: readers of public and own formats, and a seeded generator."""
