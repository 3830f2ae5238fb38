"""From a model description to bytes, as real allocators spend them."""
