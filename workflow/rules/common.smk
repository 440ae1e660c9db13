"""What all rules share: the validated config, the cells, and the hash of a program's code.

Everything that is computed here lives in calibration_tuning.planning, where it is tested.
"""

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


METRICS_SCHEMA = os.path.relpath(
    os.path.join(workflow.basedir, "workflow", "schemas", "metrics.schema.json")
)
METRICS_OF_CELL = "<results>/{model}/{method}/seed{seed}/structured/metrics.json"


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


def evaluation_settings(wildcards):
    return planning.canonical(
        PLAN.evaluation_settings(wildcards.model, wildcards.method, "structured")
    )


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


def memory_of(wildcards, attempt):
    """More at each attempt, where a profile allows several."""
    return planning.multiply(PLAN.models[wildcards.model]["memory"], attempt)


def runtime_of(wildcards, attempt):
    """As memory: a job that ran out of time resumes and gets more of it."""
    return planning.multiply(PLAN.models[wildcards.model]["runtime"], attempt)


def gpus_of(wildcards):
    return PLAN.models[wildcards.model]["gpu"]


def fetch_priority(wildcards):
    """Gated models first: a missing permission shows before hours of downloads."""
    return 100 if "gate_page" in PLAN.models[wildcards.model] else 0


def cell_files(pattern, **selection):
    """A path for every selected cell, or for those of some models or methods."""
    return [
        pattern.format(model=model, method=method, seed=seed)
        for model, method, seed in PLAN.cells(**selection)
    ]


def figure_files():
    """The figures of every selected model: of all its cells, and of those that train."""
    cells = {
        "gallery": PLAN.cells(),
        "training": PLAN.cells(trained_only=True),
    }
    return [
        f"<results>/figures/{figure}/{model}.{form}"
        for figure, of_figure in cells.items()
        for model in dict.fromkeys(model for model, _, _ in of_figure)
        for form in ("png", "pdf")
    ]


def snakemake_arguments():
    """What a rule that calls snakemake itself passes on, so that it plans the same."""
    snakefile = os.path.relpath(os.path.join(workflow.basedir, "Snakefile"))
    # The Snakefile names the first configuration file itself.
    extra = [os.path.relpath(path) for path in workflow.overwrite_configfiles]
    return ["--snakefile", snakefile, *(["--configfile", *extra] if extra else [])]


def gallery_cells(wildcards):
    """The cells of a model with the first seed that has one for the method."""
    first = {}
    for model, method, seed in PLAN.cells(models=[wildcards.model]):
        first.setdefault(method, (model, method, seed))
    return list(first.values())


def gallery_samples(wildcards):
    """The samples of each selected method, one seed of it."""
    pattern = "<results>/{}/{}/seed{}/structured/samples.parquet"
    return [pattern.format(*cell) for cell in gallery_cells(wildcards)]


def gallery_arguments(wildcards, input):
    return [
        f"--samples {method}={path}"
        for (_, method, _), path in zip(gallery_cells(wildcards), input.samples)
    ]


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
