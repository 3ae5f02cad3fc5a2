"""Compiled and interpreted classes inherit from each other only where that works."""

import os

import pytest
from router_support.compiled import imported

from blade_router.compiled.sources import SWITCH, find

PROGRAM = """
import importlib, pkgutil, sys
import blade_router

for each in pkgutil.walk_packages(blade_router.__path__, "blade_router."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)

def native(cls):
    return "__mypyc_attrs__" in vars(cls)

def refused(cls):
    try:
        cls.__new__(cls)
    except TypeError as error:
        return "cannot inherit from compiled" in str(error)
    return False

found = 0
for name, module in sorted(sys.modules.items()):
    for cls in list(vars(module).values()) if name.startswith("blade_router.") else ():
        if not isinstance(cls, type) or cls.__module__ != name:
            continue
        found += native(cls)
        parents = cls.__mro__[1:]
        if native(cls) and any(not native(each) and each.__module__ not in ("builtins", "typing") for each in parents):
            print(f"{name}.{cls.__name__} is compiled, and a parent is not")
        if not native(cls) and any(map(native, parents)) and refused(cls):
            print(f"{name}.{cls.__name__} is interpreted, and a parent is compiled")
assert found > 50, found
"""


def test_no_class_has_a_parent_of_the_other_kind_that_does_not_allow_it() -> None:
    if find() is None and os.environ[SWITCH] != "1":
        pytest.skip("make compiled makes what this looks at")
    done = imported("1", PROGRAM)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
