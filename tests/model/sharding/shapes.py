"""Configurations of published models."""

from dataclasses import replace

from model.config.model import ModelConfig

MISTRAL = ModelConfig("mistral", 4096, 32, 32, 8, 128, 14336, 32000, 1e-5, 1e4, 8192, (4096,) * 32)
MIXTRAL = replace(MISTRAL, family="mixtral", windows=(None,) * 32, n_experts=8, n_experts_per_token=2)
