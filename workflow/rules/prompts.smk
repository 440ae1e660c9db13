"""Prompts: the parameter grids of the distribution families, written out once."""


rule generate_prompts:
    """Expand the parameter grids to one prompt a line: train, unseen and held-out."""
    input:
        families=PLAN.families_file,
    output:
        train="<results>/prompts/train.jsonl",
        unseen="<results>/prompts/unseen.jsonl",
        heldout="<results>/prompts/heldout.jsonl",
        unseen_selected="<results>/prompts/unseen_selected.jsonl",
        heldout_selected="<results>/prompts/heldout_selected.jsonl",
    log:
        "<logs>/generate_prompts.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("generate_prompts.py"),
        code=code("generate_prompts.py"),
        directory=subpath(output.train, parent=True),
    shell:
        "python {params.script:q} --families {input.families:q}"
        " --output-directory {params.directory:q} 2>&1 | tee {log:q}"
