"""Structured sampling: does a model sample numbers from the distribution it is asked for?"""


rule sample_structured:
    """Sample the selected prompts and measure the divergence from their targets."""
    input:
        unseen="<results>/prompts/unseen_selected.jsonl",
        heldout="<results>/prompts/heldout_selected.jsonl",
        model="<resources>/models/{model}/manifest.json",
        adapter=adapter_of,
    output:
        samples="<results>/{model}/{method}/seed{seed}/structured/samples.parquet",
        divergences="<results>/{model}/{method}/seed{seed}/structured/divergences.jsonl",
        run="<results>/{model}/{method}/seed{seed}/structured/run.json",
    log:
        "<logs>/sample_structured/{model}/{method}/seed{seed}.log",
    benchmark:
        "<benchmarks>/sample_structured/{model}/{method}/seed{seed}.jsonl"
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("sample_structured.py"),
        code=code("sample_structured.py"),
        settings=evaluation_settings("structured"),
        prompts=subpath(input.unseen, parent=True),
        directory=subpath(output.samples, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --model {input.model:q} --adapter {input.adapter:q}"
        " --prompts-directory {params.prompts:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads}"
        " --label {wildcards.model}/{wildcards.method}/seed{wildcards.seed}"
        " --output-directory {params.directory:q} 2>&1 | tee {log:q}"


rule score_structured:
    """Score a cell's samples: validity, distances, moments, goodness of fit, divergences."""
    input:
        samples="<results>/{model}/{method}/seed{seed}/structured/samples.parquet",
        divergences="<results>/{model}/{method}/seed{seed}/structured/divergences.jsonl",
        run="<results>/{model}/{method}/seed{seed}/structured/run.json",
        unseen="<results>/prompts/unseen_selected.jsonl",
        heldout="<results>/prompts/heldout_selected.jsonl",
    output:
        "<results>/{model}/{method}/seed{seed}/structured/metrics.json",
    log:
        "<logs>/score_structured/{model}/{method}/seed{seed}.log",
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("score_structured.py"),
        code=code("score_structured.py"),
        decimals=lookup(dpath="evaluations/structured/decimals", within=config),
        max_bins=lookup(dpath="evaluations/structured/max_bins", within=config),
        prompts=subpath(input.unseen, parent=True),
    shell:
        "python {params.script:q} --samples {input.samples:q}"
        " --divergences {input.divergences:q} --run {input.run:q}"
        " --prompts-directory {params.prompts:q} --decimals {params.decimals}"
        " --max-bins {params.max_bins} --model {wildcards.model} --method {wildcards.method}"
        " --seed {wildcards.seed} --output {output:q} 2>&1 | tee {log:q}"
