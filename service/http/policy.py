"""The treatment of requests by path: whether they need a key, what is counted and logged, how errors look."""

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.routing import compile_path

from service.http.dialects import OPENAI, Dialect


@dataclass(frozen=True, slots=True)
class Policy:
    """How the server treats the requests of a route.

    `open`: they need no key. `generates`: metrics count their outcomes and durations. `quiet`: the log has them at
    level debug only. `dialect` writes their errors.
    """

    dialect: Dialect = OPENAI
    open: bool = False
    generates: bool = False
    quiet: bool = False


class Policies:
    """The policies of all paths. Raises ValueError when one path has two."""

    def __init__(self, policies: Iterable[tuple[str, Policy]]) -> None:
        self._declared: dict[str, Policy] = {}
        for path, policy in policies:
            if self._declared.setdefault(path, policy) != policy:
                raise ValueError(f"routes of {path} declare different policies")
        patterns = [path for path in self._declared if "{" in path]
        self._patterns = [(compile_path(path)[0], self._declared[path]) for path in patterns]

    def of(self, path: str) -> Policy:
        """The policy of the path's route. An unknown path has the dialect of the route above it, and nothing else."""
        if (declared := self._declared.get(path)) is not None:
            return declared
        for pattern, policy in self._patterns:
            if pattern.match(path):
                return policy
        extended = [known for known in self._declared if path.startswith(f"{known}/")]
        return Policy(self._declared[max(extended, key=len)].dialect) if extended else Policy()
