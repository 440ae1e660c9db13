"""Collectors: `snakemake adapters`, for example, builds one stage of all selected cells."""


rule prompts:
    """All prompt files."""
    input:
        rules.generate_prompts.output,
    localrule: True


rule models:
    """Every selected base model; on a cluster, run this on the node that has internet."""
    input:
        expand("<resources>/models/{model}/manifest.json", model=PLAN.select["models"]),
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
        cell_files("<results>/{model}/{method}/seed{seed}/structured/samples.parquet"),
    localrule: True


rule metrics:
    """The metrics of every selected cell."""
    input:
        cell_files("<results>/{model}/{method}/seed{seed}/structured/metrics.json"),
    localrule: True


rule tables:
    """All tables."""
    input:
        rules.collect_metrics.output,
        rules.tabulate_structured.output,
    localrule: True


rule figures:
    """All figures."""
    input:
        expand(
            "<results>/figures/{figure}/{model}.{form}",
            figure=(
                ["gallery", "training"]
                if PLAN.cells(trained_only=True)
                else ["gallery"]
            ),
            model=PLAN.select["models"],
            form=["png", "pdf"],
        ),
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
        headline="<results>/tables/structured.txt",
    output:
        "<results>/report.html",
    log:
        "<logs>/write_report.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        snakefile=os.path.relpath(os.path.join(workflow.basedir, "Snakefile")),
        config_files=config_files(),
    shell:
        # --nolock: the run that this job belongs to holds the lock, and a report only reads.
        "snakemake --snakefile {params.snakefile:q} --configfile {params.config_files:q}"
        " --report {output:q} --nolock > {log:q} 2>&1\n"
        "cat {input.headline:q}\n"
        "echo 'The report: {output}'"
