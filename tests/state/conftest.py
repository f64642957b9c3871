from tests.state.pool import pool

__all__ = ["pool"]
