"""Base models and judges: with data sets, the only step that touches the network."""


rule fetch_model:
    """Download a base model from its address, verify it and store it as safetensors.

    Runs where snakemake runs: on a cluster that is the node with internet.
    """
    output:
        "<resources>/models/{model}/manifest.json",
    log:
        "<logs>/fetch_model/{model}.log",
    wildcard_constraints:
        model=planning.one_of({**PLAN.models, **PLAN.judges}),
    priority: fetch_priority
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    resources:
        download=1,
        mem="8GB",
        runtime="2h",
    params:
        script=script("fetch_model.py"),
        code=code("fetch_model.py"),
        settings=model_source,
        directory=subpath(output[0], parent=True),
        downloads=subpath(output[0], ancestor=3),
    shell:
        "python {params.script:q} --model {wildcards.model} --settings {params.settings:q}"
        " --output-directory {params.directory:q} --downloads {params.downloads:q}/downloads"
        " 2>&1 | tee {log:q}"
