"""Settings and prompts for training tiny models in tests."""

from functools import cache

from calibration_tuning import planning, prompts
from repository import ROOT

SETTINGS = {
    "objective": "soft_target",
    "decimals": 1,
    "max_bins": 51,
    "values_per_prompt": 2,
    "packing": 2,
    "batch": 8,
    "learning_rate": 1e-2,
    "weight_decay": 0.01,
    "warmup": 0.1,
    "dtype": "float32",
}
"""As a method of the configuration, but for epochs and checkpoint_steps, which each test sets."""


@cache
def training_prompts() -> list[dict]:
    """The training prompts of the shipped grids."""
    grids = planning.load_yaml(ROOT / "config" / "families.yaml")["families"]
    return prompts.build_prompts(grids, "families.yaml")["train"]
