"""Latent attention, whose cache has one key for all heads: what is lost or damaged, with such a model."""

import signal
from functools import partial

from tests.drill.faults import deaths, prefixes
from tests.drill.row import SERVES_SECONDS, Promise, Row

KILLED = deaths.CAUSES[signal.SIGKILL]
ROWS = tuple(
    Row(f"{fault}, with latent attention", Promise(own, serves=SERVES_SECONDS), action, "latent", askers, cause)
    for fault, own, action, askers, cause in (
        ("SIGKILL of the engine while requests run", "they are answered all the same", deaths.in_flight, 1, KILLED),
        (
            "SIGKILL of the engine, under load",
            "",
            partial(deaths.strike, "engine", signal.SIGKILL),
            deaths.LOAD,
            KILLED,
        ),
        ("each page on disk has a flipped bit", "no damaged page is served", prefixes.damaged, 1, "damaged-pages"),
    )
)
