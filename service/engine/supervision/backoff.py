"""The time to wait before something that failed is tried again."""

import random

LONGEST_SECONDS = 30.0


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row: none after the first, then twice as long each time.

    At most `LONGEST_SECONDS`. Up to half is left out at random, so that many servers do not start at one time.
    """
    longest = min(0.5 * (2 ** min(failures, 16) - 1), LONGEST_SECONDS)
    return longest * random.uniform(0.5, 1.0)
