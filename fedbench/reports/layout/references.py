"""What the methods, data sets and papers behind a table are cited as: tables/references.toml, and references.toml in a
user's papers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

import fedbench
from fedbench import reader, resources
from fedbench.declaration import Declaration
from fedbench.errors import FedbenchError
from fedbench.groups import by_key
from fedbench.methods import declarations
from fedbench.reader import Among
from fedbench.reports.layout.grid import Grid

_FILE = "references.toml"
#: Type of BibTeX -> the field that its venue is.
_VENUES = {
    "inproceedings": "booktitle",
    "article": "journal",
    "techreport": "institution",
    "misc": "howpublished",
}
#: The families of methods, in the order of lists.
FAMILIES = (
    "averaging and its optimisers",
    "personal models",
    "shared layers, own layers",
    "clustered",
    "importance-weighted",
    "routed",
    "adapted at test time",
)
#: The family of built-in methods that no paper is behind, and of a user's method.
NO_PAPER, YOURS = "without a paper", "your own"
#: The key of fedbench itself.
OWN = "fedbench"


@dataclass(frozen=True)
class Reference:
    """An entry of BibTeX, and what rests on it."""

    type: Annotated[str, Among("type", tuple(_VENUES))]
    author: str  #: "Last, First and Last, First"
    title: str  #: capitals to keep stand in {}
    year: int
    venue: str = ""
    arxiv: str = ""
    family: Annotated[str, Among("family", FAMILIES)] = ""  #: of its methods
    methods: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    papers: list[str] = field(default_factory=list)

    @property
    def surnames(self) -> list[str]:
        """The surnames of its authors, the first one first."""
        return [name.partition(",")[0].strip("{} ") for name in self.author.split(" and ")]

    @property
    def words(self) -> str:
        """The reference as a sentence."""
        names = self.surnames
        few = len(names) <= 3 and "others" not in names
        who = f"{', '.join(names[:-1])}{' and ' if names[1:] else ''}{names[-1]}" if few else f"{names[0]} et al."
        where = self.venue or (f"arXiv:{self.arxiv}" if self.arxiv else "")
        return ", ".join(filter(None, (who, re.sub("[{}]", "", self.title), where, str(self.year)))) + "."

    def fields(self) -> dict[str, str]:
        """Field of BibTeX -> its text."""
        found = {"title": self.title, "author": self.author, _VENUES[self.type]: self.venue, "year": str(self.year)}
        if self.type == "misc" and self.arxiv and not self.venue:  # else BibTeX's own styles do not print it
            found["howpublished"] = f"arXiv:{self.arxiv}"
        found |= {"eprint": self.arxiv, "archiveprefix": "arXiv"} if self.arxiv else {}
        return {name: text for name, text in found.items() if name and text}


def every() -> dict[str, Reference]:
    """Key -> reference. Raises FedbenchError for an invalid file, and for a key that two files have."""
    return _read((resources.TABLES / _FILE, *(folder / _FILE for folder in resources.of_user().values())))


@cache
def _read(paths: tuple[Path, ...]) -> dict[str, Reference]:
    found = {OWN: Reference("misc", "{The fedbench developers}", _TITLE, 2026)}
    for path in paths:
        if path.exists():
            entries = reader.toml(path, "file of references")
            new = {key: reader.read(Reference, raw, f"{path}, {key}") for key, raw in entries.items()}
            if twice := new.keys() & found.keys():
                raise FedbenchError(f"{path}: another file has the key {min(twice)}, too", "choose another key")
            if bad := [key for key in new if not re.fullmatch(r"[A-Za-z0-9:._-]+", key)]:
                raise FedbenchError(f"{path}: {bad[0]!r} is no key of BibTeX", "letters, digits and : . _ -")
            found |= new
    return found


_TITLE = "fedbench: benchmarks for federated learning, from a data recipe to the table in the paper"


def of_method(name: str) -> list[tuple[str, Reference]]:
    """(Key, reference) of what a method is cited as, its first paper first."""
    return [(key, one) for key, one in every().items() if name in one.methods]


def family(method: Declaration) -> str:
    """The family of a method: that of its first paper."""
    papers = [] if method.source else of_method(method.name)
    built_in = not method.source and method.name in declarations.built_in()
    return next((one.family for _, one in papers if one.family), NO_PAPER if built_in else YOURS)


def by_family(methods: Iterable[Declaration]) -> dict[str, list[Declaration]]:
    """Family -> its methods, both in the order of lists."""
    order = (*FAMILIES, NO_PAPER, YOURS)
    found = by_key((family(one), one) for one in methods)
    return {of: found[of] for of in order if of in found}


def of_row(label: str, method: str) -> tuple[str, ...]:
    """The keys of what a row cites: the method that its label names, and the one that it runs."""
    titles = {one.title: name for name, one in declarations.built_in().items()}
    asked = (titles.get(label), method)
    return tuple(dict.fromkeys(key for name in asked if name for key, _ in of_method(name)))


def with_references(grid: Grid, datasets: Iterable[str], papers: Iterable[str] = ()) -> Grid:
    """The grid with what it rests on: the references of its rows' methods, its data sets, and its papers."""
    lines = tuple(dataclasses.replace(line, cites=of_row(line.label, line.method)) for line in grid.lines)
    sets, of = set(datasets), set(papers)
    keys = [key for key, one in every().items() if of & set(one.papers)]
    keys += [key for line in lines for key in line.cites]
    keys += [key for key, one in every().items() if sets & set(one.datasets)]
    return dataclasses.replace(grid, lines=lines, references=tuple(dict.fromkeys([*keys, OWN])))


def bibtex(keys: Iterable[str]) -> list[tuple[str, str, dict[str, str]]]:
    """(type, key, fields) of these references."""
    known = every()
    entries = [(known[key].type, key, known[key].fields()) for key in keys]
    return [
        (kind, key, of | {"howpublished": f"Version {fedbench.__version__}"} if key == OWN else of)
        for kind, key, of in entries
    ]
