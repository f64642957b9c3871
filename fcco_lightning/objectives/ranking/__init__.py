"""Average precision, and objectives of ranked lists."""
