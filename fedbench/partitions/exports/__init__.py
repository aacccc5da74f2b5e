"""A partition for others: who holds which sample as a file, or clients' images in the folders of other tools."""

from fedbench.partitions.exports.export import FILES, FOLDERS, FORMATS, format_of, write

__all__ = ["FILES", "FOLDERS", "FORMATS", "format_of", "write"]
