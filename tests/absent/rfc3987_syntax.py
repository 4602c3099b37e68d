"""Stands for a package that users do not have: pip-audit brings it, and jsonschema then imports it.

It builds a parser, which takes a second in each process that imports gguf or mistral-common. `tests/conftest.py` puts
this folder before all others.
"""

raise ImportError("absent in tests")
