"""The small network of the conformance checks, for tests that train much."""

from fedbench.conformance.small import Small, small

__all__ = ["Small", "small"]
