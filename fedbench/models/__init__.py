"""Networks, each in three named parts: trunk, neck and head. Listing them does not import torch."""

from fedbench.models.registry import build, file_of, initial, names

__all__ = ["build", "file_of", "initial", "names"]
