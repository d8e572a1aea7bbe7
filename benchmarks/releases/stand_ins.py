"""Stand-ins for what of an engine is not installed here, so that its metric code runs alone."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

MODEL = "stand-in-8b"
REQUESTS = ((512, 128, 256, 0.12, 2.0), (256, 64, 0, 0.3, 3.0))
"""Prompt, generated and cached tokens; seconds to the first token and to the end."""


class _Meta(type):
    """A class of which every attribute and subscript is there."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __iter__(cls) -> Iterator[object]:
        return iter(())

    def __getitem__(cls, _: object) -> object:
        return cls


class StandIn(metaclass=_Meta):
    """A value that can be called and asked for anything, and is false."""

    def __init__(self, *_: object, **__: object) -> None:
        """Takes whatever the real one takes."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *args: object, **_: object) -> object:
        # As a decorator it leaves what it decorates as it is.
        return args[0] if len(args) == 1 and callable(args[0]) else StandIn()

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[object]:
        return iter(())


class Unset:
    """Arguments of a server: those that are given, and None for all others."""

    def __init__(self, **given: object) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        # What an environment variable or constant would be counts as unset.
        return False if name.isupper() else _Meta(name, (StandIn,), {})


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


class Release(MetaPathFinder):
    """Finds the release's own modules in its folder, and a stand-in for all the others of the engine."""

    def __init__(self, engine: str, folder: Path, own: Sequence[str]) -> None:
        self._engine = engine
        self._folder = folder
        self._own = own

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self._engine:
            return None
        if any(name == own or name.startswith(own + ".") for own in self._own):
            path = self._folder / name.replace(".", "/")
            for file, below in ((path / "__init__.py", [str(path)]), (path.with_suffix(".py"), None)):
                if file.is_file():
                    return importlib.util.spec_from_file_location(
                        name, file, submodule_search_locations=below
                    )
        return ModuleSpec(name, _StandInLoader(), is_package=True)


class Missing(MetaPathFinder):
    """Asked last: a stand-in for what is not installed here, such as torch."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        known = name.partition(".")[0] in sys.stdlib_module_names
        return None if known else ModuleSpec(name, _StandInLoader(), is_package=True)


def call(target: object, name: str, **values: object) -> bool:
    """Call a method with what it takes of `values`; False when the release has none of that name."""
    method = getattr(target, name, None)
    if method is None:
        return False
    takes = inspect.signature(method).parameters
    method(**{key: value for key, value in values.items() if key in takes})
    return True
