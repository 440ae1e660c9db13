"""Draw the gallery: for a few prompts, the target and what each method samples.

Example:
    python workflow/scripts/plot_gallery.py --prompts-directory results/prompts \
        --samples base=results/smollm2-135m/base/seed11/structured/samples.parquet \
        --samples soft=results/smollm2-135m/soft/seed11/structured/samples.parquet \
        --decimals 2 --max-bins 1001 --count 12 \
        --png results/figures/gallery.png --pdf results/figures/gallery.pdf
"""

import argparse
from pathlib import Path

from calibration_tuning import arguments, errors, figures, prompts
from calibration_tuning.evaluations import samples

SPLITS = ("unseen", "heldout")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts-directory", type=Path, required=True)
    parser.add_argument(
        "--samples",
        type=arguments.labelled_path,
        action="append",
        required=True,
        metavar="METHOD=PATH",
        help="samples.parquet of a method; once a method",
    )
    parser.add_argument("--decimals", type=int, required=True, help="of the discretised target")
    parser.add_argument("--max-bins", type=int, required=True, help="of the discretised target")
    parser.add_argument("--count", type=int, default=12, help="number of prompts")
    parser.add_argument("--png", type=Path, required=True)
    parser.add_argument("--pdf", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    parsed = parse_arguments()
    figure = figures.gallery(
        {
            method: samples.read_samples(path, "sample_structured")
            for method, path in parsed.samples
        },
        {
            split: prompts.read_prompts(parsed.prompts_directory / f"{split}_selected.jsonl")
            for split in SPLITS
        },
        count=parsed.count,
        decimals=parsed.decimals,
        max_bins=parsed.max_bins,
    )
    for path in (parsed.png, parsed.pdf):
        figures.save_figure(figure, path)


if __name__ == "__main__":
    errors.run(main)
