"""Where and how runs execute: from a job to its artifact, and from a table to all its missing runs (inside.md)."""
