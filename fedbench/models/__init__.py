"""Networks, each in three named parts: trunk, neck and head. Listing them does not import torch."""

from fedbench.models.build import build, initial
from fedbench.models.registry import file_of, names

__all__ = ["build", "file_of", "initial", "names"]
