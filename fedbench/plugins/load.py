"""Run a plug-in: its imports look as in a script, and no other plug-in gets its modules.

A module beside the file, or in a package below its folder, goes before an installed one of the same name. A plug-in's
modules have names of their own (so two may both have a `helper`) and run from the very text that was hashed. What is
loaded from the folder in another way than by an import statement (importlib, say) is refused.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from fedbench.errors import FedbenchError
from fedbench.imports import Import
from fedbench.plugins.mistakes import PluginError, in_words, mistake, shown
from fedbench.plugins.source import Module, Plugin, read

#: By the name under which a plug-in's modules stand in sys.modules.
_plugins: dict[str, Plugin] = {}


def load(file: Path) -> tuple[ModuleType, Plugin]:
    """The module of a user's file and the source that it was made from.

    Raises PluginError for one that does not load, and FedbenchError for one that loads what fedbench cannot see.
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
    except BaseException as error:  # sys.exit() at import too
        _forget(root)
        raise PluginError(f"cannot load {mistake(error) or f'{shown(file)}: {in_words(error)}'}") from error
    return module, plugin


def statements(kind: type) -> tuple[Import, ...]:
    """All import statements of the plug-in that a class comes from; none if it comes from no plug-in."""
    plugin = _plugins.get(kind.__module__.split(".")[0])
    return plugin.statements if plugin else ()


def forget(kind: type) -> None:
    """Load the plug-in that a class comes from anew the next time, as a new process would: nothing that its modules
    hold stays. A class that comes from no plug-in is left alone."""
    root = kind.__module__.split(".")[0]
    if root in _plugins:
        _forget(root)


def _forget(root: str) -> None:
    _plugins.pop(root, None)
    for name in [name for name in sys.modules if name == root or name.startswith(f"{root}.")]:
        del sys.modules[name]


def _check_unseen(plugin: Plugin, before: set[str]) -> None:
    """Raise FedbenchError if a module of the plug-in's folder was loaded past the import statements."""
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
    """Finds the modules of plug-ins under their names in sys.modules, and runs them from their text."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        module = _module(fullname)
        if module is None:
            return None
        spec = ModuleSpec(fullname, self, origin=str(module.file), is_package=module.is_package)
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        source = _module(module.__name__)
        assert source is not None
        # Import statements call __import__ of the module's own builtins, whenever they are run.
        own = {**vars(builtins), "__import__": _importing(module.__name__.split(".")[0])}
        module.__dict__["__builtins__"] = own
        exec(compile(source.text, str(source.file), "exec", dont_inherit=True), module.__dict__)


_finder = _Finder()


def _module(fullname: str) -> Module | None:
    root, _, name = fullname.partition(".")
    plugin = _plugins.get(root)
    return plugin.modules.get(name) if plugin else None


def _importing(root: str) -> Callable[..., Any]:
    """An __import__ for which the modules of a plug-in's folder stand at the top."""

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level == 0 and _module(f"{root}.{name.partition('.')[0]}") is not None:
            return builtins.__import__(name, {"__package__": root}, None, fromlist, 1)
        return builtins.__import__(name, globals, locals, fromlist, level)

    return importing
