"""The arguments of an application, from a command line or from a file, and what Ray is asked for. Without a cluster."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from deploy.ray.app import replica_settings, resources
from deploy.ray.arguments import Arguments
from model.errors import OptionError

CONFIG = Path(__file__).parents[2] / "deploy" / "ray" / "config.yaml"


def test_arguments_from_a_command_line_are_words() -> None:
    words = {
        "model": "a/b",
        "max_replicas": "4",
        "max_body": "4MiB",
        "kv_dtype": "auto",
        "lora": "x=y",
        "lenient": "true",
    }
    arguments = Arguments(**words)
    settings = arguments.settings
    assert (arguments.max_replicas, settings.model, settings.max_body_bytes) == (4, "a/b", 4 * 2**20)
    assert (settings.lora, settings.lenient, settings.max_queue) == (("x=y",), True, 256)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 8001),
        ("ssl_certfile", "a"),
        ("health_port", 1),
        ("max_connections", 2),
        ("lora_dir", "a"),
        ("modl", "a"),
        ("max_replicas", 0),
    ],
)
def test_an_argument_without_meaning_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=f"(?m)^{name}$"):
        Arguments(**{name: value})


def test_the_limits_of_a_flag_are_those_of_serve() -> None:
    with pytest.raises(OptionError, match="--max-queue must be at least 0, got -1"):
        Arguments(max_queue=-1).settings.check()


def test_a_sharded_replica_gets_one_bundle_for_all_ranks() -> None:
    arguments = Arguments(num_cpus=2, num_gpus=1, tensor_parallel_size=2, pipeline_parallel_size=2)
    settings = replica_settings(arguments)
    assert settings.threads == 2
    assert resources(arguments, settings.layout.size) == {
        "ray_actor_options": {"num_cpus": 8, "num_gpus": 4},
        "placement_group_bundles": [{"CPU": 8, "GPU": 4}],
        "placement_group_strategy": "STRICT_PACK",
    }


def test_the_example_is_what_ray_and_we_read() -> None:
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(CONFIG.read_text())).applications
    assert application.import_path == "deploy.ray.app:build"
    Arguments(**application.args).settings.check()
