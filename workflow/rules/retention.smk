"""What calibration costs: benchmarks, perplexity, and the trade-off against what it gains."""


rule fetch_task:
    """Bring the items of a benchmark task; runs where snakemake runs, like fetch_model."""
    input:
        task_file,
    output:
        "<resources>/tasks/{task}/manifest.json",
    log:
        "<logs>/fetch_task/{task}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    resources:
        download=1,
        mem="4GB",
        runtime="1h",
    params:
        script=script("fetch_task.py"),
        code=code("fetch_task.py"),
        settings=task_settings,
        directory=subpath(output[0], parent=True),
        downloads=subpath(output[0], ancestor=3),
    shell:
        "python {params.script:q} --settings {params.settings:q}"
        " --downloads {params.downloads:q}/downloads --output-directory {params.directory:q}"
        " 2>&1 | tee {log:q}"


rule fetch_item_parameters:
    """Bring TinyBenchmarks' published item parameters, where the configuration names them."""
    output:
        "<resources>/item_parameters/tinyBenchmarks.pkl",
    log:
        "<logs>/fetch_item_parameters.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    resources:
        download=1,
    params:
        script=script("fetch_item_parameters.py"),
        code=code("fetch_item_parameters.py"),
        settings=planning.canonical(
            PLAN.evaluations["benchmarks"].get("item_parameters", {})
        ),
        downloads=subpath(output[0], ancestor=2),
    shell:
        "python {params.script:q} --settings {params.settings:q}"
        " --downloads {params.downloads:q}/downloads --output {output:q} 2>&1 | tee {log:q}"


rule sample_benchmarks:
    """Scores of every item of every benchmark task."""
    input:
        tasks=TASK_FILES,
        model="<resources>/models/{model}/manifest.json",
        adapter=adapter_of,
    output:
        samples="<results>/{model}/{method}/seed{seed}/benchmarks/samples.parquet",
        run="<results>/{model}/{method}/seed{seed}/benchmarks/run.json",
    log:
        "<logs>/sample_benchmarks/{model}/{method}/seed{seed}.log",
    benchmark:
        "<benchmarks>/sample_benchmarks/{model}/{method}/seed{seed}.jsonl"
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("sample_benchmarks.py"),
        code=code("sample_benchmarks.py"),
        settings=evaluation_settings("benchmarks"),
        directory=subpath(output.samples, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --model {input.model:q} --adapter {input.adapter:q}"
        " --tasks {input.tasks:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads}"
        " --label {wildcards.model}/{wildcards.method}/seed{wildcards.seed}/benchmarks"
        " --output-directory {params.directory:q} 2>&1 | tee {log:q}"


rule score_benchmarks:
    """Means over items with intervals, and gp-IRT estimates where there are item parameters."""
    input:
        samples="<results>/{model}/{method}/seed{seed}/benchmarks/samples.parquet",
        run="<results>/{model}/{method}/seed{seed}/benchmarks/run.json",
        parameters=item_parameters,
    output:
        "<results>/{model}/{method}/seed{seed}/benchmarks/metrics.json",
    log:
        "<logs>/score_benchmarks/{model}/{method}/seed{seed}.log",
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("score_benchmarks.py"),
        code=code("score_benchmarks.py"),
    shell:
        "python {params.script:q} --samples {input.samples:q} --run {input.run:q}"
        " --item-parameters {input.parameters:q} --model {wildcards.model}"
        " --method {wildcards.method} --seed {wildcards.seed} --output {output:q}"
        " 2>&1 | tee {log:q}"


rule sample_perplexity:
    """Log likelihood of every document, in sliding windows."""
    input:
        data=data_files("perplexity"),
        model="<resources>/models/{model}/manifest.json",
        adapter=adapter_of,
    output:
        samples="<results>/{model}/{method}/seed{seed}/perplexity/samples.parquet",
        run="<results>/{model}/{method}/seed{seed}/perplexity/run.json",
    log:
        "<logs>/sample_perplexity/{model}/{method}/seed{seed}.log",
    benchmark:
        "<benchmarks>/sample_perplexity/{model}/{method}/seed{seed}.jsonl"
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("sample_perplexity.py"),
        code=code("sample_perplexity.py"),
        settings=evaluation_settings("perplexity"),
        directory=subpath(output.samples, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --model {input.model:q} --adapter {input.adapter:q}"
        " --data {input.data:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads}"
        " --label {wildcards.model}/{wildcards.method}/seed{wildcards.seed}/perplexity"
        " --output-directory {params.directory:q} 2>&1 | tee {log:q}"


rule score_perplexity:
    """Perplexity and bits per byte of each slice."""
    input:
        samples="<results>/{model}/{method}/seed{seed}/perplexity/samples.parquet",
        run="<results>/{model}/{method}/seed{seed}/perplexity/run.json",
    output:
        "<results>/{model}/{method}/seed{seed}/perplexity/metrics.json",
    log:
        "<logs>/score_perplexity/{model}/{method}/seed{seed}.log",
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("score_perplexity.py"),
        code=code("score_perplexity.py"),
    shell:
        "python {params.script:q} --samples {input.samples:q} --run {input.run:q}"
        " --model {wildcards.model} --method {wildcards.method} --seed {wildcards.seed}"
        " --output {output:q} 2>&1 | tee {log:q}"


rule compare_retention:
    """A model's gains in calibration and changes elsewhere, each against the untuned model."""
    input:
        structured=compared("structured", "metrics.json"),
        benchmarks=compared("benchmarks", "samples.parquet"),
        perplexity=compared("perplexity", "samples.parquet"),
    output:
        "<results>/{model}/trade_off.csv",
    log:
        "<logs>/compare_retention/{model}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("compare_retention.py"),
        code=code("compare_retention.py"),
        cells=compared_arguments,
    shell:
        "python {params.script:q} --model {wildcards.model} {params.cells} --output {output:q}"
        " 2>&1 | tee {log:q}"


rule tabulate_trade_off:
    """Gains and changes of all models, methods by quantity."""
    input:
        TRADE_OFFS,
    output:
        csv="<results>/tables/trade_off.csv",
        markdown="<results>/tables/trade_off.md",
        latex="<results>/tables/trade_off.tex",
        text="<results>/tables/trade_off.txt",
        html=report(
            "<results>/tables/trade_off.html",
            caption="../report/trade_off.rst",
            category="Tables",
            labels={"table": "trade-off"},
        ),
    log:
        "<logs>/tabulate_trade_off.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("tabulate_trade_off.py"),
        code=code("tabulate_trade_off.py"),
    shell:
        "python {params.script:q} --table {input:q} --csv {output.csv:q}"
        " --markdown {output.markdown:q} --latex {output.latex:q} --html {output.html:q}"
        " > {output.text:q} 2> {log:q}"


rule plot_trade_off:
    """Gain in calibration against what it costs, by method."""
    input:
        "<results>/{model}/trade_off.csv",
    output:
        png=report(
            "<results>/figures/trade_off/{model}.png",
            caption="../report/trade_off.rst",
            category="Figures",
            labels={"figure": "trade-off", "model": "{model}"},
        ),
        pdf="<results>/figures/trade_off/{model}.pdf",
    log:
        "<logs>/plot_trade_off/{model}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("plot_trade_off.py"),
        code=code("plot_trade_off.py"),
        chains=json.dumps(PLAN.replay_chains()),
    shell:
        "python {params.script:q} --table {input:q} --chains {params.chains:q}"
        " --png {output.png:q} --pdf {output.pdf:q} 2>&1 | tee {log:q}"
