"""The tests of this folder run by `make test-machines` only, one after the other."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/machines/" in item.nodeid:
            item.add_marker(pytest.mark.machines)
