"""Calibration Tuning: teach language models to sample from the distribution they are asked for.

A cell is model x method x seed; a file path is the address of a result, and asking for the path
builds it and what it needs:

    results/prompts/{split}.jsonl                                       train, unseen, heldout
    resources/data/{data}.jsonl                                         prompts, texts of data sets
    resources/tasks/{task}/manifest.json                                items of benchmark tasks
    resources/models/{model}/manifest.json                              the base model, verified
    results/{model}/replay/samples.parquet                              what some methods replay
    results/{model}/{method}/seed{seed}/adapter/                        a PEFT adapter
    results/{model}/{method}/seed{seed}/{evaluation}/samples.parquet    what the model answers
    results/{model}/{method}/seed{seed}/{evaluation}/metrics.json       what that is worth;
                            structured, open_ended, mcq, novelty, benchmarks or perplexity
    results/{model}/trade_off.csv                                       gains against losses
    results/tables/  results/figures/  results/report.html              over all cells

Collector targets: prompts, fetch, adapters, samples, metrics, tables, figures; the name of a model
or a method for its cells; cells for their states (`snakemake --list-target-rules`).
Settings are in config/; what a rule does is in its docstring.
"""

from snakemake.utils import min_version

min_version("9.22")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/prompts.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/structured.smk"
include: "workflow/rules/transfer.smk"
include: "workflow/rules/retention.smk"
include: "workflow/rules/summaries.smk"
include: "workflow/rules/speed.smk"
include: "workflow/rules/targets.smk"


rule all:
    default_target: True
    input:
        rules.write_report.output,
