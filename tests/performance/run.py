"""The performance suite: ours against the papers' way and against the arithmetic limit.

    python tests/performance/run.py            about 25 minutes on two cores
    python tests/performance/run.py --full     all of the plain way's samples and prompts
    python tests/performance/run.py train_soft sample_poisson

Every measurement runs in a process of its own, ours and the plain one after the other, so that
memory is its own and both see the same machine. Needs nothing else to run beside it. Prints a
table and writes tests/performance/results.json. Fetches SmolLM2-135M if it is not there.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
MODEL = ROOT / "resources" / "models" / "smollm2-135m" / "manifest.json"
PROMPTS = ROOT / "results" / "prompts"
ADAPTER = HERE / "adapter"

# name -> (key of the result, unit, whether more is better)
MEASURES = {
    "train_hard": ("completions_per_second", "completions/s", True),
    "train_soft": ("completions_per_second", "completions/s", True),
    "sample_poisson": ("seconds", "s", False),
    "sample_gaussian": ("seconds", "s", False),
    "sample_text": ("seconds", "s", False),
    "prepare_prompts": ("seconds", "s", False),
    "exact_kl": ("seconds", "s", False),
}
# What the plain way does of its work by default; the rest is scaled up, and the result says so.
PLAIN_BATCHES, PLAIN_EVERY = 3, 3


def prepare() -> None:
    """Fetch the model and write the prompts, by the pipeline's own targets."""
    targets = [MODEL, *(PROMPTS / f"{n}.jsonl" for n in ("train", "unseen_selected"))]
    if not all(target.exists() for target in targets):
        names = [str(target.relative_to(ROOT)) for target in targets]
        programs = str(Path(sys.executable).parent)
        environment = os.environ | {"PATH": programs + os.pathsep + os.environ["PATH"]}
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *names]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)


def measure(name: str, side: str, options: dict) -> dict:
    """Run one measurement in a process of its own."""
    command = [sys.executable, str(HERE / "measures.py"), name, side]
    command += ["--model", MODEL, "--prompts-directory", PROMPTS, "--adapter", ADAPTER]
    command += ["--options", json.dumps(options)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "workflow" / "scripts")}
    started = time.perf_counter()
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        sys.exit(f"error: {name} ({side}) failed:\n{result.stderr[-3000:]}")
    print(f"{name} {side}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return json.loads(result.stdout.splitlines()[-1])


def options_of(name: str, side: str, full: bool) -> dict:
    """The share of the plain way's work that is done."""
    if name in ("sample_poisson", "sample_gaussian"):
        return {"batches": 10 if full else PLAIN_BATCHES}
    if name == "exact_kl":
        return {"every": 1 if full else PLAIN_EVERY}
    return {}


def compare(name: str, full: bool) -> dict:
    """Both sides of a measurement and their ratio."""
    key, unit, more_is_better = MEASURES[name]
    ours, plain = (measure(name, side, options_of(name, side, full)) for side in ("ours", "plain"))
    extra = {}
    if name.startswith("train"):
        # The plain way made better than the papers' in one point; not part of the ratio.
        gathered = measure(name, "plain", {"gather": True})
        extra["plain_gathered"] = gathered[key]
        extra["ratio_gathered"] = ours[key] / gathered[key]
    ratio = ours[key] / plain[key] if more_is_better else plain[key] / ours[key]
    return {
        "name": name,
        "ours": ours[key],
        "plain": plain[key],
        "unit": unit,
        "ratio": ratio,
        "ours_details": ours,
        "plain_details": plain,
    } | extra


def table(results: list[dict]) -> str:
    """The results as aligned lines."""
    header = ["", "ours", "plain", "unit", "times", "of limit", "memory ours", "plain"]
    rows = []
    for result in results:
        share = result["ours_details"].get("share_of_limit")
        rows.append(
            [
                result["name"],
                f"{result['ours']:.2f}",
                f"{result['plain']:.2f}",
                result["unit"],
                f"{result['ratio']:.1f}",
                f"{share:.0%}" if share else "",
                *(
                    f"{result[side]['peak_memory_bytes'] / 2**30:.2f} GiB"
                    for side in ("ours_details", "plain_details")
                ),
            ]
        )
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in (header, *rows)
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASURES))
    parser.add_argument("--full", action="store_true", help="do all of the plain way's work")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(MEASURES)
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; expected: {', '.join(MEASURES)}")
    prepare()
    if not (ADAPTER / "adapter_model.safetensors").exists():
        measure("make_adapter", "ours", {})
    results = [compare(name, arguments.full) for name in arguments.names or MEASURES]
    print(table(results))
    report = {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
        },
        "results": results,
    }
    (HERE / "results.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
