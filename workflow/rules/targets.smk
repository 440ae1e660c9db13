"""Collectors: `snakemake adapters`, for example, builds one stage of all selected cells,
`snakemake gemma-3-4b` all cells of a model and `snakemake soft` all cells of a method.
"""


rule prompts:
    """All prompt files."""
    input:
        rules.generate_prompts.output,
    localrule: True


rule fetch:
    """All that comes from the network; on a cluster, run this on the node that has internet."""
    input:
        expand("<resources>/models/{model}/manifest.json", model=PLAN.needed_models()),
        [
            file
            for evaluation in PLAN.select["evaluations"]
            for file in data_files(evaluation)
        ],
        TASK_FILES if "benchmarks" in PLAN.select["evaluations"] else [],
    localrule: True


rule adapters:
    """Every adapter of the selected cells."""
    input:
        cell_files(
            "<results>/{model}/{method}/seed{seed}/adapter/adapter_model.safetensors",
            trained_only=True,
        ),
    localrule: True


rule samples:
    """Everything that needs a model to run."""
    input:
        result_files(
            "<results>/{model}/{method}/seed{seed}/{evaluation}/samples.parquet"
        ),
    localrule: True


rule metrics:
    """The metrics of every selected cell."""
    input:
        result_files(METRICS_OF_CELL),
    localrule: True


for model in PLAN.models:

    rule:
        name:
            model
        input:
            result_files(METRICS_OF_CELL, models=[model]),
        localrule: True


for method in PLAN.methods:

    rule:
        name:
            method
        input:
            result_files(METRICS_OF_CELL, methods=[method]),
        localrule: True


rule cells:
    """List the selected cells: done, missing, stale, or left out, and why."""
    log:
        "<logs>/list_cells.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("list_cells.py"),
        excluded=[planning.canonical(entry) for entry in PLAN.excluded()],
        snakemake=snakemake_arguments(),
    shell:
        "python {params.script:q} --excluded {params.excluded:q}"
        " --snakemake {params.snakemake:q} 2>&1 | tee {log:q}"


rule tables:
    """All tables."""
    input:
        rules.collect_metrics.output,
        table_files(),
    localrule: True


rule figures:
    """All figures."""
    input:
        figure_files(),
    localrule: True


rule training_speed:
    """What a fixed time of training buys, ours against the papers' way."""
    input:
        expand(
            "<results>/figures/training_speed/{model}.png",
            model=PLAN.select["models"],
        ),
    localrule: True


rule write_report:
    """Snakemake's own report over all tables and figures, and the headline numbers."""
    input:
        rules.tables.input,
        rules.figures.input,
        rules.training_speed.input if "training_speed" in PLAN.select["studies"] else [],
        headlines=[path for path in table_files() if path.endswith(".txt")],
    output:
        "<results>/report.html",
    log:
        "<logs>/write_report.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        snakemake=snakemake_arguments(),
    shell:
        # --nolock: the run that this job belongs to holds the lock, and a report only reads.
        "snakemake {params.snakemake:q} --report {output:q} --nolock > {log:q} 2>&1\n"
        "cat {input.headlines:q}\n"
        "echo 'The report: {output}'"
