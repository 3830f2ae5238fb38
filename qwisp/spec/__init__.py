"""What a model is: layer kinds with their geometry, read from its own files; and machines."""
