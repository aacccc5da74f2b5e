"""From metrics and table specs to tables in print. Never trains, never imports torch.

`table` reads a table's TOML into a `spec`, `cells` finds what each of its cells needs and what the store has,
`build` lays the values out as a `grid`, and `render` writes a grid as text, LaTeX, Markdown, CSV, HTML or JSON.
"""
