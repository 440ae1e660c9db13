"""Collectors: `snakemake adapters`, for example, builds one stage of all selected cells."""


rule prompts:
    """All prompt files."""
    localrule: True
    input:
        rules.generate_prompts.output,


rule models:
    """Every selected base model; on a cluster, run this on the node that has internet."""
    localrule: True
    input:
        expand("<resources>/models/{model}/manifest.json", model=PLAN.select["models"]),


rule adapters:
    """Every adapter of the selected cells."""
    localrule: True
    input:
        cell_files(
            "<results>/{model}/{method}/seed{seed}/adapter/adapter_model.safetensors",
            trained_only=True,
        ),


rule samples:
    """Everything that needs a model to run."""
    localrule: True
    input:
        cell_files("<results>/{model}/{method}/seed{seed}/structured/samples.parquet"),


rule metrics:
    """The metrics of every selected cell."""
    localrule: True
    input:
        cell_files("<results>/{model}/{method}/seed{seed}/structured/metrics.json"),


rule tables:
    """All tables."""
    localrule: True
    input:
        rules.collect_metrics.output,
        rules.tabulate_structured.output,


rule figures:
    """All figures."""
    localrule: True
    input:
        rules.plot_gallery.output,
        rules.plot_training.output,
