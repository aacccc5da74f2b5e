"""From metrics and table specs to tables in print. Never trains, never imports torch.

`table` reads a table's TOML, `status` finds what each of its cells needs and what the store has, `numbers` makes the
number of a cell, `layout` lays them out as a grid, and `render` writes that as text, LaTeX, Markdown, CSV, HTML, JSON.
`round_metrics` has the papers' figures. README.md here is for who wants to change or extend this.
"""
