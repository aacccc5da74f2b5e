"""Networks, each in three named parts: backbone, projection and head. Listing them does not import torch."""

from fedbench.models.build import build, initial
from fedbench.models.registry import check, code_of, named, names, version

__all__ = ["build", "check", "code_of", "initial", "named", "names", "version"]
