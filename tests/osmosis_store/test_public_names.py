from __future__ import annotations

import pkgutil

import osmosis_store


def test_no_module_has_the_name_of_what_the_package_hands_out() -> None:
    """Importing the module would put it where the package promises a function or a class."""
    modules = {module.name for module in pkgutil.iter_modules(osmosis_store.__path__)}

    assert modules.isdisjoint(osmosis_store.__all__)
