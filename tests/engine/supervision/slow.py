"""A module whose import takes seconds."""

import time

time.sleep(5)
