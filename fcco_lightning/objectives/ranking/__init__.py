"""Average precision, and objectives on ranked lists."""
