"""Makes printed tables from metrics and declared tables. Never trains, never imports torch.

`numbers` computes the number of a cell, `layout` arranges cells in a grid, and `render` writes it as text, LaTeX,
Markdown, CSV, HTML or JSON; `figures` draws, `compare` compares runs, `claims` checks the papers' claims.
To change or extend this room, read its inside.md.
"""
