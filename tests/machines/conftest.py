"""The tests of this folder run by `make test-machines` only, one after the other."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--python", action="append", default=[], help="set up and serve with this Python too")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "python" in metafunc.fixturenames:
        metafunc.parametrize("python", metafunc.config.getoption("--python"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/machines/" in item.nodeid:
            item.add_marker(pytest.mark.machines)
