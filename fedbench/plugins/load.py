"""Read and run a plug-in. It can import as a script does, and other plug-ins do not see its modules.

A module in the file's folder, or in a package in that folder, precedes an installed one of the same name. A plug-in's
modules have unique names in sys.modules (two plug-ins can both have a `helper`) and run from exactly the text that was
hashed. Loading a file of the folder without an import statement (for example, by importlib) is an error.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from fedbench.errors import FedbenchError, unknown
from fedbench.imports import Import
from fedbench.plugins import PluginError, in_words, mistake, shown
from fedbench.plugins.source import Module, Plugin, is_there, read

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
        there = is_there(path)
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
