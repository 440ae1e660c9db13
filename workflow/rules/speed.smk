"""What a fixed time of training buys: ours against the papers' way."""


rule compare_training:
    """Train one way for a fixed time and measure the held-out divergence as it goes."""
    input:
        train="<results>/prompts/train.jsonl",
        heldout="<results>/prompts/heldout_selected.jsonl",
        model="<resources>/models/{model}/manifest.json",
    output:
        "<results>/training_speed/{model}/{way}.jsonl",
    log:
        "<logs>/compare_training/{model}/{way}.log",
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("compare_training.py"),
        code=code("compare_training.py"),
        settings=speed_settings,
        seed=PLAN.select["seeds"][0],
        prompts=subpath(input.train, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --model {input.model:q} --prompts-directory {params.prompts:q}"
        " --settings {params.settings:q} --seed {params.seed} --threads {threads}"
        " --label {wildcards.model}/{wildcards.way} --output {output:q} 2>&1 | tee {log:q}"


rule summarise_training_speed:
    """Table and curves over all ways of training."""
    input:
        expand(
            "<results>/training_speed/{{model}}/{way}.jsonl",
            way=PLAN.training_speed["ways"],
        ),
    output:
        csv="<results>/tables/training_speed/{model}.csv",
        markdown="<results>/tables/training_speed/{model}.md",
        html=report(
            "<results>/tables/training_speed/{model}.html",
            caption="../report/training_speed_table.rst",
            category="Tables",
            labels={"table": "training speed", "model": "{model}"},
        ),
        png=report(
            "<results>/figures/training_speed/{model}.png",
            caption="../report/training_speed.rst",
            category="Figures",
            labels={"figure": "training speed", "model": "{model}"},
        ),
        pdf="<results>/figures/training_speed/{model}.pdf",
    log:
        "<logs>/summarise_training_speed/{model}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("summarise_training_speed.py"),
        code=code("summarise_training_speed.py"),
        runs=speed_arguments,
    shell:
        "python {params.script:q} {params.runs} --csv {output.csv:q}"
        " --markdown {output.markdown:q} --html {output.html:q} --png {output.png:q}"
        " --pdf {output.pdf:q} 2>&1 | tee {log:q}"
