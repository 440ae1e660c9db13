"""Tables and figures over all selected cells."""


rule collect_metrics:
    """All metrics of all cells as one tidy table."""
    input:
        metrics=result_files(METRICS_OF_CELL),
        schema=METRICS_SCHEMA,
    output:
        report(
            "<results>/tables/metrics.csv",
            caption="../report/metrics.rst",
            category="Tables",
            labels={"table": "all metrics"},
        ),
    log:
        "<logs>/collect_metrics.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("collect_metrics.py"),
        code=code("collect_metrics.py"),
    shell:
        "python {params.script:q} --schema {input.schema:q} --output {output:q} {input.metrics:q}"
        " 2>&1 | tee {log:q}"


rule tabulate_evaluation:
    """The summary of an evaluation: methods by split."""
    input:
        "<results>/tables/metrics.csv",
    output:
        csv="<results>/tables/{evaluation}.csv",
        markdown="<results>/tables/{evaluation}.md",
        latex="<results>/tables/{evaluation}.tex",
        text="<results>/tables/{evaluation}.txt",
        html=report(
            "<results>/tables/{evaluation}.html",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{evaluation}"},
        ),
    log:
        "<logs>/tabulate_evaluation/{evaluation}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("tabulate_evaluation.py"),
        code=code("tabulate_evaluation.py"),
    shell:
        "python {params.script:q} --metrics {input:q} --evaluation {wildcards.evaluation}"
        " --csv {output.csv:q} --markdown {output.markdown:q} --latex {output.latex:q}"
        " --html {output.html:q} > {output.text:q} 2> {log:q}"


rule plot_gallery:
    """A dozen prompts: the target against what each method samples."""
    input:
        samples=gallery_samples,
        unseen="<results>/prompts/unseen_selected.jsonl",
        heldout="<results>/prompts/heldout_selected.jsonl",
    output:
        png=report(
            "<results>/figures/gallery/{model}.png",
            caption="../report/gallery.rst",
            category="Figures",
            labels={"figure": "gallery", "model": "{model}"},
        ),
        pdf="<results>/figures/gallery/{model}.pdf",
    log:
        "<logs>/plot_gallery/{model}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("plot_gallery.py"),
        code=code("plot_gallery.py"),
        decimals=lookup(dpath="evaluations/structured/decimals", within=config),
        max_bins=lookup(dpath="evaluations/structured/max_bins", within=config),
        samples=gallery_arguments,
        prompts=subpath(input.unseen, parent=True),
    shell:
        "python {params.script:q} --prompts-directory {params.prompts:q} {params.samples}"
        " --decimals {params.decimals} --max-bins {params.max_bins} --png {output.png:q}"
        " --pdf {output.pdf:q} 2>&1 | tee {log:q}"


rule plot_training:
    """Loss against steps of every trained method and seed of a model."""
    input:
        training_histories,
    output:
        png=report(
            "<results>/figures/training/{model}.png",
            caption="../report/training.rst",
            category="Figures",
            labels={"figure": "training curves", "model": "{model}"},
        ),
        pdf="<results>/figures/training/{model}.pdf",
    log:
        "<logs>/plot_training/{model}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("plot_training.py"),
        code=code("plot_training.py"),
        histories=training_arguments,
    shell:
        "python {params.script:q} {params.histories} --png {output.png:q}"
        " --pdf {output.pdf:q} 2>&1 | tee {log:q}"


rule plot_transfer:
    """Support and answers, shares of A to D, NoveltyBench, benchmarks or perplexity, by method."""
    input:
        transfer_metrics,
    output:
        png=report(
            "<results>/figures/{evaluation}/{model}.png",
            caption="../report/transfer.rst",
            category="Figures",
            labels={"figure": "{evaluation}", "model": "{model}"},
        ),
        pdf="<results>/figures/{evaluation}/{model}.pdf",
    log:
        "<logs>/plot_transfer/{evaluation}/{model}.log",
    wildcard_constraints:
        evaluation=planning.one_of(OTHERS),
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("plot_transfer.py"),
        code=code("plot_transfer.py"),
        metrics=transfer_arguments,
    shell:
        "python {params.script:q} --evaluation {wildcards.evaluation} {params.metrics}"
        " --png {output.png:q} --pdf {output.pdf:q} 2>&1 | tee {log:q}"


rule plot_decoding:
    """Hotter is not calibrated: the untuned model at several temperatures."""
    input:
        "<results>/tables/metrics.csv",
    output:
        png=report(
            "<results>/figures/decoding/{model}.png",
            caption="../report/decoding.rst",
            category="Figures",
            labels={"figure": "decoding", "model": "{model}"},
        ),
        pdf="<results>/figures/decoding/{model}.pdf",
    log:
        "<logs>/plot_decoding/{model}.log",
    localrule: True
    conda:
        "../../envs/calibration.yaml"
    params:
        script=script("plot_decoding.py"),
        code=code("plot_decoding.py"),
        decodings=planning.canonical(PLAN.decodings()),
    shell:
        "python {params.script:q} --metrics {input:q} --model {wildcards.model}"
        " --decodings {params.decodings:q} --png {output.png:q} --pdf {output.pdf:q}"
        " 2>&1 | tee {log:q}"
