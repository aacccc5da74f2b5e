"""Names of users' classes in specs, and of users' functions in tables: the name and the digest of its source, such as
`Net@0123456789ab`. The same text is the same class in any folder, and results of it can be identified and reported
without the file."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from fedbench.errors import FedbenchError, unknown
from fedbench.plugins.load import Place, T, is_file, load, pick, place
from fedbench.plugins.source import Plugin, read

#: Separates the class name from the digits of the source digest.
AT = "@"
#: Number of hexadecimal digits of the digest.
DIGITS = 12
#: Maximum number of a file's classes or functions that the error lists if the user names none.
MOST = 3


class Known(NamedTuple):
    """A user's class or function that this process has been given."""

    place: Place
    source: Plugin  #: as it was read when it was named


class Named:
    """The users' classes, or functions, of one kind that this process has been given."""

    def __init__(self, what: str, option: str, functions: bool = False) -> None:
        self.what = what  #: such as "model"
        self.option = option  #: command-line option, or key of a table, that gives one
        self.kind = "function" if functions else "class"
        self._known: dict[str, Known] = {}

    def name(self, given: str) -> str:
        """The name of a class in specs: for 'FILE.py:Class' the class and its source digest, else `given` itself. No
        code is run. Raises FedbenchError if the file is missing or not Python, or the class not named or not in it; so
        of a function."""
        if not is_file(given):
            return given
        at = place(given, self.what)
        if at.name is None or not at.name.isidentifier():
            own = [f"{at.file.name}:{name}" for name in sorted(self._defined(read(at.file)))]
            example = f"such as {' or '.join(own[:MOST])}" if own else "it defines none"
            kinds = "functions" if self.kind == "function" else "classes"
            raise FedbenchError(f"{given} does not say which of its {kinds} is the {self.what}", example)
        source = read(at.file)
        if at.name not in self._defined(source, assigned=True):
            raise unknown(f"{self.what} {self.kind} in {given}", at.name, self._defined(source))
        name = f"{at.name}{AT}{source.digest[:DIGITS]}"
        self._known[name] = Known(at, source)
        return name

    def _defined(self, source: Plugin, assigned: bool = False) -> set[str]:
        return source.functions() if self.kind == "function" else source.classes(assigned)

    def is_plugin(self, name: str) -> bool:
        """Whether a name in a spec refers to a user's class or function."""
        return AT in name

    def __contains__(self, name: str) -> bool:
        """Whether this process has been given that class."""
        return name in self._known

    def known(self, name: str) -> Known:
        """Place and source of that class. Raises FedbenchError if this process has not been given it."""
        if name not in self._known:
            cls, _, digits = name.partition(AT)
            raise FedbenchError(
                f"the {self.what} {name} is a user's file that is not available",
                f"give {self.option} FILE.py:{cls} (source {digits})",
            )
        return self._known[name]

    def load(self, name: str, base: type[T]) -> tuple[type[T], Place]:
        """That class, which must derive from `base`, and its place.

        Raises FedbenchError if it does not derive from `base` or if its file has changed since it was named;
        PluginError if the file does not load.
        """
        at, module = self._module(name)
        return pick(module, base, at.name, at.reference, self.what), at

    def function(self, name: str) -> tuple[Callable[..., Any], Place]:
        """That function and its place. Raises the same errors."""
        at, module = self._module(name)
        return vars(module)[str(at.name)], at

    def _module(self, name: str) -> tuple[Place, ModuleType]:
        at, source = self.known(name)
        module, now = load(at.file)
        if now.digest != source.digest:
            raise FedbenchError(f"{at.reference} was changed while fedbench was at work", "give the command again")
        return at, module
