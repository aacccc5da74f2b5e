"""From metrics and declared tables to tables in print. Never trains, never imports torch.

`numbers` makes the number of a cell, `layout` lays cells out as a grid, and `render` writes that as text, LaTeX,
Markdown, CSV, HTML or JSON; `figures` draws, `compare` sets runs side by side, `claims` weighs what a paper claims.
README.md here is for who wants to change or extend this.
"""
