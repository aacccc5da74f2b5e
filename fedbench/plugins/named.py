"""Names of users' classes in specs: a spec knows one by its class and its source, such as `Net@0123456789ab`. The same
text is the same class wherever it lies, and what was made of it can be told and reported without the file."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from fedbench.errors import FedbenchError, unknown
from fedbench.plugins.classes import Place, is_file, pick, place
from fedbench.plugins.load import load
from fedbench.plugins.source import Plugin, read

T = TypeVar("T")

#: What stands between the class and the digits of its source's digest.
AT = "@"
#: Digits of the digest.
DIGITS = 12
#: So many classes of a file are named to whoever names none.
MOST = 3


class Known(NamedTuple):
    """A class that this process was given."""

    place: Place
    source: Plugin  #: as it was read when it was named


class Named:
    """The users' classes of one kind that this process was given."""

    def __init__(self, what: str, option: str) -> None:
        self.what = what  #: such as "model"
        self.option = option  #: of the command line, by which one is given
        self._known: dict[str, Known] = {}

    def name(self, given: str) -> str:
        """The name under which a spec knows a class: for 'FILE.py:Class' the class and its source, else as given.
        Nothing is run. Raises FedbenchError for a file that is not there, no Python or without the class's name."""
        if not is_file(given):
            return given
        at = place(given, self.what)
        if at.name is None or not at.name.isidentifier():
            own = [f"{at.file.name}:{name}" for name in sorted(read(at.file).classes())]
            example = f"such as {' or '.join(own[:MOST])}" if own else "it defines none"
            raise FedbenchError(f"{given} does not say which of its classes is the {self.what}", example)
        source = read(at.file)
        if at.name not in source.classes(assigned=True):
            raise unknown(f"{self.what} class in {given}", at.name, source.classes())
        name = f"{at.name}{AT}{source.digest[:DIGITS]}"
        self._known[name] = Known(at, source)
        return name

    def is_plugin(self, name: str) -> bool:
        """Whether a spec's name is that of a user's class."""
        return AT in name

    def __contains__(self, name: str) -> bool:
        """Whether this process was given that class."""
        return name in self._known

    def known(self, name: str) -> Known:
        """Where that class is. Raises FedbenchError if this process was not given it."""
        if name not in self._known:
            cls, _, digits = name.partition(AT)
            raise FedbenchError(
                f"the {self.what} {name} is a user's file that is not at hand",
                f"give {self.option} FILE.py:{cls} (source {digits})",
            )
        return self._known[name]

    def load(self, name: str, base: type[T]) -> tuple[type[T], Place]:
        """That class, which must derive from `base`, and where it stands.

        Raises FedbenchError for one that does not, or whose file was changed since it was named; PluginError for a
        file that does not load.
        """
        at, source = self.known(name)
        module, now = load(at.file)
        if now.digest != source.digest:
            raise FedbenchError(f"{at.reference} was changed while fedbench was at work", "give the command again")
        return pick(module, base, at.name, at.reference, self.what), at
