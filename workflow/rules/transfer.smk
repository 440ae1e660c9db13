"""Does calibration carry over to words? Open-ended choice, answer balance, NoveltyBench."""


rule sample_open_ended:
    """Answers to prompts such as "name a random city", and the support of their first token."""
    input:
        prompts=PLAN.evaluations["open_ended"]["prompts_file"],
        model="<resources>/models/{model}/manifest.json",
        adapter=adapter_of,
    output:
        samples="<results>/{model}/{method}/seed{seed}/open_ended/samples.parquet",
        support="<results>/{model}/{method}/seed{seed}/open_ended/support.jsonl",
        run="<results>/{model}/{method}/seed{seed}/open_ended/run.json",
    log:
        "<logs>/sample_open_ended/{model}/{method}/seed{seed}.log",
    benchmark:
        "<benchmarks>/sample_open_ended/{model}/{method}/seed{seed}.jsonl"
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("sample_open_ended.py"),
        code=code("sample_open_ended.py"),
        settings=evaluation_settings("open_ended"),
        directory=subpath(output.samples, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --model {input.model:q} --adapter {input.adapter:q}"
        " --prompts {input.prompts:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads}"
        " --label {wildcards.model}/{wildcards.method}/seed{wildcards.seed}/open_ended"
        " --output-directory {params.directory:q} 2>&1 | tee {log:q}"


rule score_open_ended:
    """Support curve, different answers, the most common ones, empty ones."""
    input:
        samples="<results>/{model}/{method}/seed{seed}/open_ended/samples.parquet",
        support="<results>/{model}/{method}/seed{seed}/open_ended/support.jsonl",
        run="<results>/{model}/{method}/seed{seed}/open_ended/run.json",
        prompts=PLAN.evaluations["open_ended"]["prompts_file"],
    output:
        "<results>/{model}/{method}/seed{seed}/open_ended/metrics.json",
    log:
        "<logs>/score_open_ended/{model}/{method}/seed{seed}.log",
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("score_open_ended.py"),
        code=code("score_open_ended.py"),
    shell:
        "python {params.script:q} --samples {input.samples:q} --support {input.support:q}"
        " --run {input.run:q} --prompts {input.prompts:q} --model {wildcards.model}"
        " --method {wildcards.method} --seed {wildcards.seed} --output {output:q}"
        " 2>&1 | tee {log:q}"


rule sample_mcq:
    """Multiple-choice questions of the model's own."""
    input:
        model="<resources>/models/{model}/manifest.json",
        adapter=adapter_of,
    output:
        samples="<results>/{model}/{method}/seed{seed}/mcq/samples.parquet",
        run="<results>/{model}/{method}/seed{seed}/mcq/run.json",
    log:
        "<logs>/sample_mcq/{model}/{method}/seed{seed}.log",
    benchmark:
        "<benchmarks>/sample_mcq/{model}/{method}/seed{seed}.jsonl"
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("sample_mcq.py"),
        code=code("sample_mcq.py"),
        settings=evaluation_settings("mcq"),
        directory=subpath(output.samples, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --model {input.model:q} --adapter {input.adapter:q}"
        " --settings {params.settings:q} --seed {wildcards.seed} --threads {threads}"
        " --label {wildcards.model}/{wildcards.method}/seed{wildcards.seed}/mcq"
        " --output-directory {params.directory:q} 2>&1 | tee {log:q}"


rule score_mcq:
    """Which letters are the right answers, with exact intervals; why other texts do not count."""
    input:
        samples="<results>/{model}/{method}/seed{seed}/mcq/samples.parquet",
        run="<results>/{model}/{method}/seed{seed}/mcq/run.json",
    output:
        "<results>/{model}/{method}/seed{seed}/mcq/metrics.json",
    log:
        "<logs>/score_mcq/{model}/{method}/seed{seed}.log",
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("score_mcq.py"),
        code=code("score_mcq.py"),
    shell:
        "python {params.script:q} --samples {input.samples:q} --run {input.run:q}"
        " --model {wildcards.model} --method {wildcards.method} --seed {wildcards.seed}"
        " --output {output:q} 2>&1 | tee {log:q}"


rule fetch_data:
    """Bring the prompts or texts of a data set; runs where snakemake runs, like fetch_model."""
    input:
        data_file,
    output:
        "<resources>/data/{data}.jsonl",
    log:
        "<logs>/fetch_data/{data}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    resources:
        download=1,
        mem="2GB",
        runtime="30m",
    params:
        script=script("fetch_data.py"),
        code=code("fetch_data.py"),
        settings=data_settings,
        downloads=subpath(output[0], ancestor=2),
    shell:
        "python {params.script:q} --settings {params.settings:q}"
        " --downloads {params.downloads:q}/downloads --output {output:q} 2>&1 | tee {log:q}"


rule generate_novelty:
    """NoveltyBench, first step: several generations of each prompt."""
    input:
        data=data_files("novelty"),
        model="<resources>/models/{model}/manifest.json",
        adapter=adapter_of,
    output:
        samples="<results>/{model}/{method}/seed{seed}/novelty/samples.parquet",
        run="<results>/{model}/{method}/seed{seed}/novelty/run.json",
    log:
        "<logs>/generate_novelty/{model}/{method}/seed{seed}.log",
    benchmark:
        "<benchmarks>/generate_novelty/{model}/{method}/seed{seed}.jsonl"
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("generate_novelty.py"),
        code=code("generate_novelty.py"),
        settings=evaluation_settings("novelty"),
        directory=subpath(output.samples, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --model {input.model:q} --adapter {input.adapter:q}"
        " --data {input.data:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads}"
        " --label {wildcards.model}/{wildcards.method}/seed{wildcards.seed}/novelty"
        " --output-directory {params.directory:q} 2>&1 | tee {log:q}"


rule partition_novelty:
    """NoveltyBench, second step: which generations of a prompt are the same in other words."""
    input:
        samples="<results>/{model}/{method}/seed{seed}/novelty/samples.parquet",
        judge=judge_manifest("partition"),
    output:
        "<results>/{model}/{method}/seed{seed}/novelty/partition.json",
    log:
        "<logs>/partition_novelty/{model}/{method}/seed{seed}.log",
    conda:
        "../../envs/calibration.yaml"
    threads: judge_entry("partition")["threads"]
    resources:
        gpu=judge_entry("partition")["gpu"],
        mem=times_attempt(judge_entry("partition")["memory"]),
        runtime=times_attempt(judge_entry("partition")["runtime"]),
    params:
        launch=script("launch.py"),
        script=script("partition_novelty.py"),
        code=code("partition_novelty.py"),
        settings=judge_settings("partition"),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --samples {input.samples:q} --judge {input.judge:q}"
        " --settings {params.settings:q} --threads {threads}"
        " --label {wildcards.model}/{wildcards.method}/seed{wildcards.seed}/novelty"
        " --output {output:q} 2>&1 | tee {log:q}"


rule score_novelty:
    """NoveltyBench, third step: how good generations are; distinct ones, and their utility."""
    input:
        samples="<results>/{model}/{method}/seed{seed}/novelty/samples.parquet",
        run="<results>/{model}/{method}/seed{seed}/novelty/run.json",
        partition="<results>/{model}/{method}/seed{seed}/novelty/partition.json",
        data=data_files("novelty"),
        judge=judge_manifest("quality"),
    output:
        "<results>/{model}/{method}/seed{seed}/novelty/metrics.json",
    log:
        "<logs>/score_novelty/{model}/{method}/seed{seed}.log",
    conda:
        "../../envs/calibration.yaml"
    threads: judge_entry("quality")["threads"]
    resources:
        gpu=judge_entry("quality")["gpu"],
        mem=times_attempt(judge_entry("quality")["memory"]),
        runtime=times_attempt(judge_entry("quality")["runtime"]),
    params:
        launch=script("launch.py"),
        script=script("score_novelty.py"),
        code=code("score_novelty.py"),
        settings=judge_settings("quality"),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --samples {input.samples:q} --run {input.run:q}"
        " --partition {input.partition:q} --data {input.data:q} --judge {input.judge:q}"
        " --settings {params.settings:q} --threads {threads} --model {wildcards.model}"
        " --method {wildcards.method} --seed {wildcards.seed} --output {output:q}"
        " 2>&1 | tee {log:q}"
