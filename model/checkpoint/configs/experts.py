"""`moe` in Mistral's params.json: the sparse experts."""

from collections.abc import Mapping
from typing import Any

from model.checkpoint.configs.fields import check_keys
from model.errors import ModelError, short

FIELDS: Mapping[str, str] = {
    "num_experts": "n_experts",
    "num_experts_per_tok": "n_experts_per_token",
    "expert_hidden_dim": "expert_hidden_dim",
    "num_shared_experts": "n_shared_experts",
    "routed_scale": "routed_scale",
    "first_k_dense_replace": "first_k_dense_replace",
    "route_every_n": "route_every_n",
}
"""Keys, each with its field of ModelConfig."""
GROUPS = ("num_expert_groups", "num_expert_groups_per_tok")
TRAINING = ("expert_parallel", "expert_model_parallel")
"""Keys that say how the model was trained."""


def read_experts(raw: Any) -> dict[str, Any]:
    """The fields of ModelConfig about experts; none for a dense model. A key that is null is not set."""
    known = check_keys({} if raw is None else raw, (*FIELDS, *GROUPS, *TRAINING), "moe in params.json")
    moe = {key: value for key, value in known.items() if value is not None}
    for key in GROUPS:
        if moe.get(key, 1) != 1:
            raise ModelError(f"params.json has moe.{key} {short(moe[key])}; Noria supports 1 group of experts")
    if moe and not moe.get("num_experts"):
        raise ModelError("params.json has moe without num_experts; Noria needs a number of at least 1")
    return {field: moe[key] for key, field in FIELDS.items() if key in moe}
