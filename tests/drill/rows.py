"""All rows of the drill by family, in the order of a run. A new row goes into the file of its family."""

from collections.abc import Mapping, Sequence

from tests.drill.attacks import bodies, connections, forms, generated, heads, protocol, queue, sites
from tests.drill.faults import (
    audio,
    clock,
    deaths,
    images,
    latent,
    limits,
    loads,
    memory,
    models,
    prefixes,
    responses,
    steps,
    streams,
)
from tests.drill.row import LoneRow, Row

FAMILIES: Mapping[str, Sequence[Row | LoneRow]] = {
    "Heads of requests": heads.ROWS,
    "Edges of HTTP": protocol.ROWS,
    "Pages of other sites": sites.ROWS,
    "Connections": connections.ROWS,
    "Bodies": bodies.ROWS,
    "Hostile forms": forms.ROWS,
    "Processes": deaths.ROWS,
    "Streams": streams.ROWS,
    "Images": images.ROWS,
    "Audio": audio.ROWS,
    "Latent attention": latent.ROWS,
    "Limits of the machine": limits.ROWS,
    "Generated requests and files": generated.ROWS,
    "Queue and keys": queue.ROWS,
    "Steps of the engine": steps.ROWS,
    "Clock": clock.ROWS,
    "Pages on disk": prefixes.ROWS,
    "Stored responses": responses.ROWS,
    "Several models": models.ROWS,
    "No fault": loads.ROWS,
    "Memory": memory.ROWS,
}
