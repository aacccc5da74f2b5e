"""The files of a plug-in: a user's file and what it imports from its own folder."""

from __future__ import annotations

from pathlib import Path


def write(folder: Path, **texts: str) -> Path:
    """Files by module path ('a__b' is a/b.py, 'a____init__' a/__init__.py); returns mine.py."""
    for name, text in texts.items():
        module = name.removesuffix("____init__")
        file = folder / (module.replace("__", "/") + "/__init__" * (module != name) + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "mine.py"
