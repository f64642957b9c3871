from tests.distributed.pool import pool

__all__ = ["pool"]
