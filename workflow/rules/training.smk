"""Training: one LoRA adapter for each model, trained method and seed."""


rule sample_replay:
    """Answers of an untuned model to general instructions, for methods that replay them."""
    input:
        prompts=PLAN.replay["prompts_file"],
        model="<resources>/models/{model}/manifest.json",
    output:
        samples="<results>/{model}/replay/samples.parquet",
        run="<results>/{model}/replay/run.json",
    log:
        "<logs>/sample_replay/{model}.log",
    benchmark:
        "<benchmarks>/sample_replay/{model}.jsonl"
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("sample_replay.py"),
        code=code("sample_replay.py"),
        settings=replay_settings,
        seed=PLAN.replay["seed"],
        directory=subpath(output.samples, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu}"
        " {params.script:q} --model {input.model:q} --prompts {input.prompts:q}"
        " --settings {params.settings:q} --seed {params.seed} --threads {threads}"
        " --label {wildcards.model}/replay --output-directory {params.directory:q}"
        " 2>&1 | tee {log:q}"


rule train_adapter:
    """Fine-tune a base model on the training prompts; resumes where it was killed."""
    input:
        prompts="<results>/prompts/train.jsonl",
        model="<resources>/models/{model}/manifest.json",
        replay=replay_of,
    output:
        weights="<results>/{model}/{method}/seed{seed}/adapter/adapter_model.safetensors",
        config="<results>/{model}/{method}/seed{seed}/adapter/adapter_config.json",
        history="<results>/{model}/{method}/seed{seed}/history.jsonl",
    log:
        "<logs>/train_adapter/{model}/{method}/seed{seed}.log",
    benchmark:
        "<benchmarks>/train_adapter/{model}/{method}/seed{seed}.jsonl"
    conda:
        "../../envs/calibration.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
        mem=memory_of,
        runtime=runtime_of,
    params:
        launch=script("launch.py"),
        script=script("train_adapter.py"),
        code=code("train_adapter.py"),
        settings=training_settings,
        directory=subpath(output.history, parent=True),
    shell:
        "python {params.launch:q} --gpus {resources.gpu} --processes {resources.gpu}"
        " {params.script:q} --model {input.model:q} --prompts {input.prompts:q}"
        " --replay {input.replay:q} --settings {params.settings:q}"
        " --seed {wildcards.seed} --threads {threads}"
        " --label {wildcards.model}/{wildcards.method}/seed{wildcards.seed}"
        " --output-directory {params.directory:q} 2>&1 | tee {log:q}"
