"""Collectors: `snakemake adapters`, for example, builds one stage of all selected cells."""


rule prompts:
    input:
        rules.generate_prompts.output,
    """All prompt files."""
    localrule: True


rule models:
    input:
        expand("<resources>/models/{model}/manifest.json", model=PLAN.select["models"]),
    """Every selected base model; on a cluster, run this on the node that has internet."""
    localrule: True


rule adapters:
    input:
        cell_files(
            "<results>/{model}/{method}/seed{seed}/adapter/adapter_model.safetensors",
            trained_only=True,
        ),
    """Every adapter of the selected cells."""
    localrule: True


rule samples:
    input:
        cell_files("<results>/{model}/{method}/seed{seed}/structured/samples.parquet"),
    """Everything that needs a model to run."""
    localrule: True


rule metrics:
    input:
        cell_files("<results>/{model}/{method}/seed{seed}/structured/metrics.json"),
    """The metrics of every selected cell."""
    localrule: True


rule tables:
    input:
        rules.collect_metrics.output,
        rules.tabulate_structured.output,
    """All tables."""
    localrule: True


rule figures:
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
    """All figures."""
    localrule: True


rule write_report:
    input:
        rules.tables.input,
        rules.figures.input,
        headline="<results>/tables/structured.txt",
    output:
        "<results>/report.html",
    log:
        "<logs>/write_report.log",
    """Snakemake's own report over all tables and figures, and the headline numbers."""
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    shell:
        # --nolock: the run that this job belongs to holds the lock, and a report only reads.
        "snakemake --snakefile {SNAKEFILE:q} --configfile {CONFIG_FILES} --report {output:q}"
        " --nolock > {log:q} 2>&1\n"
        "cat {input.headline:q}\n"
        "echo 'The report: {output}'"
