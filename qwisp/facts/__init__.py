"""What happened in a real run: written to a file, and replayed through a fresh scheduler."""
