"""Building blocks that several methods call."""
