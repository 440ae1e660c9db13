"""Small made-up results of structured sampling, for the tests of what is done with them."""

import numpy as np
import pandas as pd

from calibration_tuning.families import Distribution


def _prompt(family: str, **params: float) -> dict:
    distribution = Distribution(family, params)
    return {"family": family, "params": params, "prompt": distribution.prompt}


PROMPTS = {
    "unseen": [_prompt("gaussian", mu=3.5, sigma=3.0), _prompt("binomial", n=25.0, p=0.5)],
    "heldout": [
        _prompt("bernoulli", p=0.1),
        _prompt("bernoulli", p=0.5),
        _prompt("maxwell", scale=0.75),
        _prompt("maxwell", scale=1.5),
    ],
}


def make_samples(samples: int = 40, seed: int = 0) -> pd.DataFrame:
    """Samples of the targets, every tenth of them replaced by words."""
    rng = np.random.default_rng(seed)
    rows = []
    for split, records in PROMPTS.items():
        for index, record in enumerate(records):
            distribution = Distribution(record["family"], record["params"])
            space = distribution.output_space(2, 1001)
            texts = rng.choice(space.texts, samples, p=space.probabilities)
            rows += [
                (split, index, number, "no number" if number % 10 == 9 else str(text))
                for number, text in enumerate(texts)
            ]
    frame = pd.DataFrame(rows, columns=["split", "prompt_index", "sample", "text"])
    frame["token_ids"] = [[7, 9] if text == "no number" else [7, 8, 9] for text in frame["text"]]
    frame["finished"] = True
    return frame.astype({"prompt_index": "int32", "sample": "int32"})


def make_divergences() -> list[dict]:
    """A line a prompt; no mass on the output space for odd prompts."""
    return [
        {
            "split": split,
            "prompt_index": index,
            "family": record["family"],
            "params": record["params"],
            "logit_kl": 0.5,
            "logit_kl_standard_error": 0.0,
            "sequence_kl": 1.0 + index,
            "sequence_kl_standard_error": 0.0,
            "space_mass": 0.75 if index % 2 == 0 else None,
            "space_mass_standard_error": 0.0,
            "space_mass_bound": 0.9,
            "space_wasserstein": 0.25 if index % 2 == 0 else None,
            "exact": index % 2 == 0,
            "prefixes": 400,
            "paths": None if index % 2 == 0 else 64,
        }
        for split, records in PROMPTS.items()
        for index, record in enumerate(records)
    ]


def make_provenance() -> dict:
    """As the step that runs the model writes it."""
    return {
        "package_version": "0.1.0",
        "git": None,
        "python": "3.11.2",
        "libraries": {"torch": "2.13.0"},
        "base_model": {"model": "tiny", "source": "path:tiny", "revision": None},
        "adapter_sha256": None,
        "device": "cpu",
        "dtype": "float32",
        "seed": 11,
        "cpu_threads": 2,
        "wall_time_seconds": 1.5,
    }
