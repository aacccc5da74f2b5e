"""fedbench: benchmarks for federated learning, from a data recipe to the table in the paper."""

__version__ = "0.1.0"
