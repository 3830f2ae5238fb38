"""One file an engine: its rows, its variants, its overhead, its log lines and its spellings."""
