"""What all rules share: the validated config, the cells, and the hash of a program's code.

Everything that is computed here lives in calibration_tuning.planning, where it is tested.
"""

import os
import sys

SCRIPTS = os.path.join(workflow.basedir, "workflow", "scripts")
sys.path.insert(0, SCRIPTS)

from calibration_tuning import errors, planning

try:
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
    return planning.canonical(PLAN.evaluation_settings(wildcards.model, "structured"))


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


def memory_of(wildcards):
    return PLAN.models[wildcards.model]["memory"]


def runtime_of(wildcards):
    return PLAN.models[wildcards.model]["runtime"]


def gpus_of(wildcards):
    return PLAN.models[wildcards.model]["gpu"]


def cell_files(pattern, trained_only=False):
    """A path for every selected cell."""
    return [
        pattern.format(model=model, method=method, seed=seed)
        for model, method, seed in PLAN.cells(trained_only)
    ]


def config_files():
    """The configuration files in the order in which they are merged."""
    return [os.path.relpath(path) for path in reversed(workflow.configfiles)]


def gallery_samples(wildcards):
    """The samples of each selected method with the first seed."""
    pattern = "<results>/{model}/{method}/seed{seed}/structured/samples.parquet"
    seed = PLAN.select["seeds"][0]
    return [
        pattern.format(model=wildcards.model, method=method, seed=seed)
        for method in PLAN.select["methods"]
    ]


def gallery_arguments(wildcards, input):
    return [
        f"--samples {method}={path}"
        for method, path in zip(PLAN.select["methods"], input.samples)
    ]


def training_histories(wildcards):
    """The histories of each selected trained method and seed."""
    pattern = "<results>/{model}/{method}/seed{seed}/history.jsonl"
    return [
        pattern.format(model=model, method=method, seed=seed)
        for model, method, seed in PLAN.cells(trained_only=True)
        if model == wildcards.model
    ]


def training_arguments(wildcards, input):
    methods = [
        method
        for model, method, seed in PLAN.cells(trained_only=True)
        if model == wildcards.model
    ]
    return [f"--history {method}={path}" for method, path in zip(methods, input)]
