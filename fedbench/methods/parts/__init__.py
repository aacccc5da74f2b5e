"""Building blocks that more than one method uses."""
