"""Read and run a plug-in. It can import as a script does, and other plug-ins do not see its modules.

A module in the file's folder, or in a package in that folder, precedes an installed one of the same name. A plug-in's
modules have unique names in sys.modules (two plug-ins can both have a `helper`) and run from exactly the text that was
hashed. Loading a file of the folder without an import statement (for example, by importlib) is an error.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from fedbench.errors import FedbenchError, unknown
from fedbench.imports import Import, code, imports
from fedbench.plugins import FILES, PluginError, in_words, mistake, shown

# -- source ----------------------------------------------------------------------------------------------------
# The source of a plug-in: a user's file and what its import statements import from the same folder.


class Module(NamedTuple):
    """A module of a plug-in: its file (a folder for a package without __init__.py) and its text, which is read once."""

    file: Path
    text: bytes

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py" or self.file.suffix != ".py"


@dataclass(frozen=True)
class Plugin:
    """A user's file and all modules that it imports from its folder, by their names relative to that folder."""

    main: str
    modules: dict[str, Module]
    statements: tuple[Import, ...]  #: all import statements in these modules

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file's code (no comments, no docstrings). If the plug-in has more modules: SHA-256 of the
        checksums of all modules and the relative paths of the others."""
        own = self.modules[self.main]
        lines = [hashlib.sha256(code(own.text)).hexdigest()]
        for name, module in sorted(self.modules.items()):
            if name != self.main:
                place = module.file.relative_to(own.file.parent).as_posix()
                lines.append(f"{hashlib.sha256(code(module.text)).hexdigest()} {place}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest() if len(lines) > 1 else lines[0]

    def classes(self, assigned: bool = False) -> set[str]:
        """Names of all classes that the file defines; if `assigned`, also all assigned names, which may be classes."""
        nodes = list(ast.walk(ast.parse(self.modules[self.main].text)))
        names = {n.id for n in nodes if assigned and isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return names | {node.name for node in nodes if isinstance(node, ast.ClassDef)}


#: File -> the plug-in that another process read from it.
_given: dict[Path, Plugin] = {}


def give(plugin: Plugin) -> None:
    """Take a plug-in as another process read it, in place of its files, which may be missing or other ones here."""
    _given[plugin.modules[plugin.main].file] = plugin
    FILES.update(str(module.file) for module in plugin.modules.values())


def read(file: Path) -> Plugin:
    """The plug-in of a file, as it was given, or found by following import statements; no code is run.

    Raises FedbenchError for a file that cannot be read, and PluginError for one that is not valid Python.
    """
    if file in _given:
        return _given[file]
    main = file.stem.replace(".", "_")
    modules: dict[str, Module] = {}
    statements: list[Import] = []
    waiting = [(main, file)]
    while waiting:
        name, path = waiting.pop()
        if name in modules:
            continue
        modules[name] = module = Module(path, _text(path))
        own = list(imports(_parsed(module)))
        statements += own
        package = name.split(".") if module.is_package else name.split(".")[:-1]
        named = {candidate for one in own for candidate in _named(one, package)}
        waiting += [(n, beside) for n in sorted(named - {main}) if (beside := _locate(file.parent, n))]
    return Plugin(main, modules, tuple(statements))


def _text(path: Path) -> bytes:
    try:
        return b"" if path.is_dir() else path.read_bytes()
    except OSError as error:
        raise FedbenchError(f"cannot read {shown(path)} ({error.strerror})") from error


def _parsed(module: Module) -> ast.Module:
    FILES.add(str(module.file))
    try:
        tree = ast.parse(module.text, str(module.file))
        code(module.text)  # recurses deeper than the parser, so it may fail where parsing does not
        return tree
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = mistake(error) or f"{shown(module.file)}: {in_words(error)}"
        raise PluginError(f"cannot load {line}") from error


def _named(one: Import, package: list[str]) -> Iterator[str]:
    """Modules that a statement may import, relative to the plug-in's folder; for 'from a import b' also 'a.b'."""
    above = one.level - 1 if one.level else len(package)
    if above > len(package):
        return
    base = [*package[: len(package) - above], *filter(None, one.module.split("."))]
    for path in ([*base, name] for name in ("", *one.names)):
        yield from (".".join(path[:k]) for k in range(1, len(path) + 1) if all(path[:k]))


def _locate(folder: Path, name: str) -> Path | None:
    """The file of the module if it is in the folder, else None; for a package without an __init__.py, its folder."""
    top, path = name.split(".")[0], folder.joinpath(*name.split("."))
    if top == "fedbench" or top in sys.builtin_module_names:
        return None
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file
    if path.is_dir() and any(path.glob("*.py")):
        installed = find_spec(top)  # Python prefers an installed module to a folder without __init__.py
        return path if installed is None or installed.origin is None else None
    return None


# -- classes ---------------------------------------------------------------------------------------------------
# A user's class from 'FILE.py:Class', or from 'FILE.py' if the file has only one class of the kind.


T = TypeVar("T")


def is_file(reference: str) -> bool:
    """Whether a name given by the user refers to a user's file."""
    return ".py:" in reference or reference.endswith(".py")


class Place(NamedTuple):
    """Where a class is: its file, and its name if the user gave one."""

    file: Path
    name: str | None
    reference: str  #: as the user wrote it


def place(reference: str, what: str) -> Place:
    """The file and class that the reference 'FILE.py:Class' or 'FILE.py' names. `what` is the kind, such as "method".

    Raises FedbenchError if there is no such file.
    """
    file, name = (reference, "") if reference.endswith(".py") else reference.rsplit(":", 1)
    try:
        path = Path(os.path.expanduser(file)).absolute()  # Path.expanduser would read './~x' as '~x'
        there = path in _given or path.is_file()
    except (OSError, ValueError):  # for example, a name that is too long
        there = False
    if not there:
        raise FedbenchError(f"no file {file} to take the {what} from")
    return Place(path, name or None, reference)


def classes(module: ModuleType) -> dict[str, type]:
    """The classes that a module defines itself, by name."""
    own = vars(module).items()
    return {name: value for name, value in own if inspect.isclass(value) and value.__module__ == module.__name__}


def pick(module: ModuleType, base: type[T], wanted: str | None, reference: str, what: str) -> type[T]:
    """The class named `wanted` that the module defines and that derives from `base`; if `wanted` is None, the only such
    class. Raises FedbenchError if there is none, or more than one and no name."""
    own = classes(module)
    fitting = {name: value for name, value in own.items() if issubclass(value, base)}
    if wanted is not None and wanted not in fitting:
        if wanted in own:
            raise FedbenchError(f"{reference} is no {what}", f"derive it from {base.__module__}.{base.__name__}")
        raise unknown(f"{what} class in {reference}", wanted, fitting)
    if wanted is None and len(fitting) != 1:
        raise FedbenchError(f"{reference} defines {len(fitting)} {what}s", "name one: FILE.py:Class")
    return fitting[wanted] if wanted else next(iter(fitting.values()))


# -- load ------------------------------------------------------------------------------------------------------


#: Root name of a plug-in's modules in sys.modules -> the plug-in.
_plugins: dict[str, Plugin] = {}


def load(file: Path) -> tuple[ModuleType, Plugin]:
    """The module of a user's file, and the plug-in source that it was loaded from.

    Raises PluginError if the file does not load, and FedbenchError if it loads files without an import statement.
    """
    plugin = read(file)
    root = f"fedbench_plugin_{plugin.digest[:12]}"
    name = f"{root}.{plugin.main}"
    if _plugins.get(root) == plugin:
        return sys.modules[name], plugin
    _forget(root)
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    folder = ModuleType(root)
    folder.__path__ = []
    sys.modules[root], _plugins[root] = folder, plugin
    before = set(sys.modules)
    try:
        module = import_module(name)
        _check_unseen(plugin, before)
    except (KeyboardInterrupt, FedbenchError):
        _forget(root)
        raise
    except BaseException as error:  # also catches sys.exit() at import
        _forget(root)
        raise PluginError(f"cannot load {mistake(error) or f'{shown(file)}: {in_words(error)}'}") from error
    return module, plugin


def statements(kind: type) -> tuple[Import, ...]:
    """All import statements of the plug-in that defines a class; empty if no plug-in does."""
    plugin = _plugins.get(kind.__module__.split(".")[0])
    return plugin.statements if plugin else ()


def forget(kind: type) -> None:
    """Unload the plug-in that defines a class, so that the next `load` runs it again as in a new process, without any
    state of its modules. Does nothing for a class that no plug-in defines."""
    root = kind.__module__.split(".")[0]
    if root in _plugins:
        _forget(root)


def _forget(root: str) -> None:
    _plugins.pop(root, None)
    for name in [name for name in sys.modules if name == root or name.startswith(f"{root}.")]:
        del sys.modules[name]


def _check_unseen(plugin: Plugin, before: set[str]) -> None:
    """Raise FedbenchError if a module of the plug-in's folder was loaded without an import statement."""
    folder = plugin.modules[plugin.main].file.parent
    for name in set(sys.modules) - before:
        file, top = getattr(sys.modules.get(name), "__file__", None), name.split(".")[0]
        beside = (folder / f"{top}.py", folder / top / "__init__.py")
        if top in _plugins or top == "fedbench" or not file or not any(path.is_file() for path in beside):
            continue
        if Path(file).is_relative_to(folder):
            raise FedbenchError(
                f"{shown(plugin.modules[plugin.main].file)} loads {shown(file)} without an import statement, so that "
                "fedbench cannot tell what code its runs are made of",
                "import it by an import statement",
            )


class _Finder(MetaPathFinder, Loader):
    """Finds plug-in modules by their names in sys.modules, and runs them from the text that was read."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        module = _module(fullname)
        if module is None:
            return None
        spec = ModuleSpec(fullname, self, origin=str(module.file), is_package=module.is_package)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def get_source(self, fullname: str) -> str | None:
        """The text of a module whose file may be missing here, for tracebacks and `inspect`."""
        module = _module(fullname)
        return module and decode_source(module.text)

    def exec_module(self, module: ModuleType) -> None:
        source = _module(module.__name__)
        assert source is not None
        tree = _Rooted(module.__name__.split(".")[0]).visit(ast.parse(source.text, str(source.file)))
        exec(compile(tree, str(source.file), "exec", dont_inherit=True), module.__dict__)


_finder = _Finder()


def _module(fullname: str) -> Module | None:
    root, _, name = fullname.partition(".")
    plugin = _plugins.get(root)
    return plugin.modules.get(name) if plugin else None


class _Rooted(ast.NodeTransformer):
    """Rewrites import statements: modules of the plug-in's folder get their names in sys.modules."""

    def __init__(self, root: str) -> None:
        self.root = root

    def named(self, module: str) -> str:
        own = _module(f"{self.root}.{module.partition('.')[0]}")
        return module if own is None else f"{self.root}.{module}"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        node.module = self.named(node.module) if node.module and not node.level else node.module
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.Import]:
        """Rewrite `import a.b`, which loads a.b and binds a, to two statements if a is a module of the plug-in."""
        aliases = []
        for one in node.names:
            top, loaded = one.name.partition(".")[0], self.named(one.name)
            aliases += [ast.alias(loaded, one.asname)]
            aliases += [ast.alias(self.named(top), top)] if loaded != one.name and not one.asname else []
        return [ast.fix_missing_locations(ast.copy_location(ast.Import([alias]), node)) for alias in aliases]


# -- named -----------------------------------------------------------------------------------------------------
# Names of users' classes in specs: the class name and the digest of its source, such as `Net@0123456789ab`. The same
# text is the same class in any folder, and results of it can be identified and reported without the file.


#: Separates the class name from the digits of the source digest.
AT = "@"
#: Number of hexadecimal digits of the digest.
DIGITS = 12
#: Maximum number of a file's classes that the error lists if the user names none.
MOST = 3


class Known(NamedTuple):
    """A user's class that this process has been given."""

    place: Place
    source: Plugin  #: as it was read when it was named


class Named:
    """The users' classes of one kind that this process has been given."""

    def __init__(self, what: str, option: str) -> None:
        self.what = what  #: such as "model"
        self.option = option  #: command-line option that gives one
        self._known: dict[str, Known] = {}

    def name(self, given: str) -> str:
        """The name of a class in specs: for 'FILE.py:Class' the class and its source digest, else `given` itself. No
        code is run. Raises FedbenchError if the file is missing or not Python, or the class not named or not in it."""
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
        """Whether a name in a spec refers to a user's class."""
        return AT in name

    def __contains__(self, name: str) -> bool:
        """Whether this process has been given that class."""
        return name in self._known

    def known(self, name: str) -> Known:
        """Place and source of that class. Raises FedbenchError if this process has not been given it."""
        if name not in self._known:
            cls, _, digits = name.partition(AT)
            raise FedbenchError(
                f"the {self.what} {name} is a user's file that is not at hand",
                f"give {self.option} FILE.py:{cls} (source {digits})",
            )
        return self._known[name]

    def load(self, name: str, base: type[T]) -> tuple[type[T], Place]:
        """That class, which must derive from `base`, and its place.

        Raises FedbenchError if it does not derive from `base` or if its file has changed since it was named;
        PluginError if the file does not load.
        """
        at, source = self.known(name)
        module, now = load(at.file)
        if now.digest != source.digest:
            raise FedbenchError(f"{at.reference} was changed while fedbench was at work", "give the command again")
        return pick(module, base, at.name, at.reference, self.what), at
