"""What a decoder model is: its numbers, its family's spellings, the tiny instances."""
