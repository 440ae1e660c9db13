"""What all rules share: the validated config, the cells, and the hash of a program's code.

Everything that is computed here lives in calibration_tuning.planning, where it is tested.
"""

import json
import os
import sys

SCRIPTS = os.path.join(workflow.basedir, "workflow", "scripts")
sys.path.insert(0, SCRIPTS)

from calibration_tuning import errors, planning

try:
    planning.check_writable(
        (".", "results", "resources", "logs", "benchmarks", ".snakemake")
    )
    PLAN = planning.load_plan(config, workflow.configfiles, workflow.basedir)
except errors.InputError as error:
    sys.exit(f"error: {error}")


report: "../report/workflow.rst"


wildcard_constraints:
    model=planning.one_of(PLAN.models),
    method=planning.one_of(PLAN.methods),
    seed=r"\d+",
    split=planning.one_of(planning.SPLITS),
    way=planning.one_of(PLAN.training_speed["ways"]),
    evaluation=planning.one_of(PLAN.evaluations),
    data=planning.one_of(PLAN.data_sets()),
    task=planning.one_of(PLAN.tasks()),


METRICS_SCHEMA = os.path.relpath(
    os.path.join(workflow.basedir, "workflow", "schemas", "metrics.schema.json")
)
OTHERS = [evaluation for evaluation in PLAN.evaluations if evaluation != "structured"]
METRICS_OF_CELL = "<results>/{model}/{method}/seed{seed}/{evaluation}/metrics.json"
TASK_FILES = [f"<resources>/tasks/{task}/manifest.json" for task in PLAN.tasks()]


def script(name):
    """Path of a program from the working folder, so that every checkout gives the same."""
    return os.path.relpath(os.path.join(SCRIPTS, name))


def code(script):
    """Hash of the code behind a program: comments and docstrings do not count."""
    return planning.code_hash(os.path.join(SCRIPTS, script))


def model_source(wildcards):
    return planning.canonical(PLAN.source_settings(wildcards.model))


def training_settings(wildcards):
    return planning.canonical(PLAN.training_settings(wildcards.model, wildcards.method))


def evaluation_settings(evaluation):
    """A function of wildcards, for params."""

    def settings(wildcards):
        return planning.canonical(
            PLAN.evaluation_settings(wildcards.model, wildcards.method, evaluation)
        )

    return settings


def judge_entry(role):
    """The registry's entry of NoveltyBench's judge of "partition" or "quality"."""
    return PLAN.entry(PLAN.evaluations["novelty"][role]["judge"])


def judge_settings(role):
    return planning.canonical(PLAN.judge_settings("novelty", role))


def judge_manifest(role):
    judge = PLAN.evaluations["novelty"][role]["judge"]
    return f"<resources>/models/{judge}/manifest.json"


def data_files(evaluation):
    """The data sets of an evaluation, fetched."""
    return [f"<resources>/data/{name}.jsonl" for name in PLAN.data_names(evaluation)]


def data_settings(wildcards):
    return planning.canonical(PLAN.data_sets()[wildcards.data])


def local_file(source):
    """The file of an address that is one on this machine, so that a change to it is seen."""
    kind, _, path = source.partition(":")
    return [path] if kind == "path" and os.path.isfile(path) else []


def data_file(wildcards):
    return local_file(PLAN.data_sets()[wildcards.data]["source"])


def task_settings(wildcards):
    return planning.canonical(PLAN.tasks()[wildcards.task])


def task_file(wildcards):
    return local_file(PLAN.tasks()[wildcards.task].get("source", ""))


def item_parameters(wildcards):
    """TinyBenchmarks' item parameters, where the configuration names them."""
    named = "item_parameters" in PLAN.evaluations["benchmarks"]
    return ["<resources>/item_parameters/tinyBenchmarks.pkl"] if named else []


def compared(evaluation, file):
    """A function of wildcards: one evaluation's files of the cells that a trade-off compares."""

    def of_model(wildcards):
        return [
            f"<results>/{model}/{method}/seed{seed}/{evaluation}/{file}"
            for model, method, seed, _ in PLAN.compared_cells(wildcards.model).get(
                evaluation, []
            )
        ]

    return of_model


def compared_arguments(wildcards, input):
    cells = PLAN.compared_cells(wildcards.model)
    return [
        f"--{evaluation} {method}/seed{seed}={path}"
        for evaluation, of_evaluation in cells.items()
        for (_, method, seed, _), path in zip(of_evaluation, input[evaluation])
    ]


TRADE_OFFS = [
    f"<results>/{model}/trade_off.csv"
    for model in PLAN.select["models"]
    if PLAN.compared_cells(model)
]


def replay_of(wildcards):
    """What a method replays: answers of the untuned model, and the instructions to it."""
    if not PLAN.replays(wildcards.method):
        return []
    return [
        f"<results>/{wildcards.model}/replay/samples.parquet",
        PLAN.replay["prompts_file"],
    ]


def replay_settings(wildcards):
    return planning.canonical(PLAN.replay_settings(wildcards.model))


def speed_settings(wildcards):
    return planning.canonical(PLAN.speed_settings(wildcards.model, wildcards.way))


def speed_arguments(wildcards, input):
    return [
        f"--run {way}={path}" for way, path in zip(PLAN.training_speed["ways"], input)
    ]


def adapter_of(wildcards):
    """The adapter that a cell needs: none for a method that does not train."""
    if not PLAN.is_trained(wildcards.method):
        return []
    return f"<results>/{wildcards.model}/{wildcards.method}/seed{wildcards.seed}/adapter/adapter_model.safetensors"


def threads_of(wildcards):
    return PLAN.models[wildcards.model]["threads"]


def times_attempt(quantity):
    """More at each attempt, where a profile allows several."""

    def more(wildcards, attempt):
        return planning.multiply(quantity, attempt)

    return more


def memory_of(wildcards, attempt):
    return planning.multiply(PLAN.models[wildcards.model]["memory"], attempt)


def runtime_of(wildcards, attempt):
    """As memory: a job that ran out of time resumes and gets more of it."""
    return planning.multiply(PLAN.models[wildcards.model]["runtime"], attempt)


def gpus_of(wildcards):
    return PLAN.models[wildcards.model]["gpu"]


def fetch_priority(wildcards):
    """Gated models first: a missing permission shows before hours of downloads."""
    return 100 if "gate_page" in PLAN.entry(wildcards.model) else 0


def cell_files(pattern, **selection):
    """A path for every selected cell, or for those of some models or methods."""
    return [
        pattern.format(model=model, method=method, seed=seed)
        for model, method, seed in PLAN.cells(**selection)
    ]


def result_files(pattern, **selection):
    """A path for every selected cell and each of its evaluations."""
    return [
        pattern.format(model=model, method=method, seed=seed, evaluation=evaluation)
        for model, method, seed, evaluation in PLAN.results(**selection)
    ]


def table_files():
    """The summaries of the selected evaluations that a selected method takes part in."""
    summaries = dict.fromkeys(result[-1] for result in PLAN.results())
    if TRADE_OFFS:
        summaries["trade_off"] = None
    return [
        f"<results>/tables/{summary}.{form}"
        for summary in summaries
        for form in ("csv", "md", "tex", "txt", "html")
    ]


def figure_files():
    """The figures of every selected model: each of the cells that it shows."""
    cells = {
        "gallery": PLAN.results(["structured"]),
        "training": PLAN.cells(trained_only=True),
        "decoding": PLAN.cells(methods=PLAN.selected_decodings()),
        **{evaluation: PLAN.results([evaluation]) for evaluation in OTHERS},
        "trade_off": [(m,) for m in PLAN.select["models"] if PLAN.compared_cells(m)],
    }
    return [
        f"<results>/figures/{figure}/{model}.{form}"
        for figure, of_figure in cells.items()
        for model in dict.fromkeys(cell[0] for cell in of_figure)
        for form in ("png", "pdf")
    ]


def snakemake_arguments():
    """What a rule that calls snakemake itself passes on, so that it plans the same."""
    snakefile = os.path.relpath(os.path.join(workflow.basedir, "Snakefile"))
    # The Snakefile names the first configuration file itself.
    extra = [os.path.relpath(path) for path in workflow.overwrite_configfiles]
    return ["--snakefile", snakefile, *(["--configfile", *extra] if extra else [])]


def shown_results(model, evaluation):
    """A model's results with the first seed that has one for the method.

    Other ways to draw from the untuned model have a figure of their own.
    """
    first = {}
    for result in PLAN.results([evaluation], models=[model]):
        if result[1] not in PLAN.selected_decodings():
            first.setdefault(result[1], result)
    return list(first.values())


def gallery_samples(wildcards):
    """The samples of each selected method, one seed of it."""
    pattern = "<results>/{}/{}/seed{}/{}/samples.parquet"
    return [
        pattern.format(*result)
        for result in shown_results(wildcards.model, "structured")
    ]


def gallery_arguments(wildcards, input):
    shown = shown_results(wildcards.model, "structured")
    return [
        f"--samples {result[1]}={path}" for result, path in zip(shown, input.samples)
    ]


def transfer_metrics(wildcards):
    """The metrics of each selected method, one seed of it."""
    pattern = "<results>/{}/{}/seed{}/{}/metrics.json"
    shown = shown_results(wildcards.model, wildcards.evaluation)
    return [pattern.format(*result) for result in shown]


def transfer_arguments(wildcards, input):
    shown = shown_results(wildcards.model, wildcards.evaluation)
    return [f"--metrics {result[1]}={path}" for result, path in zip(shown, input)]


def training_histories(wildcards):
    """The histories of each selected trained method and seed."""
    return cell_files(
        "<results>/{model}/{method}/seed{seed}/history.jsonl",
        trained_only=True,
        models=[wildcards.model],
    )


def training_arguments(wildcards, input):
    cells = PLAN.cells(trained_only=True, models=[wildcards.model])
    return [f"--history {method}={path}" for (_, method, _), path in zip(cells, input)]
