"""Every decision about sessions, admission, growth and prefill. No clock, no I/O, no arrays."""
