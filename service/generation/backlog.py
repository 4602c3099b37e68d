"""Counts by tenant of what is in the server, with limits. One tenant may reach a limit, and not keep the others out."""

from collections import Counter


class Share:
    """A count by tenant: the name of an API key; without keys "", or the address of a client."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()  # only tenants that have something

    @property
    def total(self) -> int:
        return self._used.total()

    def add(self, tenant: str, n: int) -> None:
        """Count `n` more; a negative number counts what has left."""
        self._used[tenant] += n
        if not self._used[tenant]:
            del self._used[tenant]

    def is_full(self, tenant: str, limit: int, n: int = 1) -> bool:
        """Whether with `n` more the tenants together would exceed the limit, and this one its equal part of it.

        T tenants may have up to 1 + 1/2 + ... + 1/T times the limit, if each fills what the others left.
        """
        n_tenants = len(self._used.keys() | {tenant})
        return self.total + n > limit and (self._used[tenant] + n - 1) * n_tenants >= limit


class Backlog:
    """What waits for the engine: choices without a first step, and the tokens of prompts without one."""

    def __init__(self) -> None:
        self.tokens = Share()
        self.choices = Share()

    def add(self, tenant: str, tokens: int, choices: int) -> None:
        """Count more; negative numbers count what waits no longer."""
        self.tokens.add(tenant, tokens)
        self.choices.add(tenant, choices)
