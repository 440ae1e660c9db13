"""Benchmarks through lm-eval: our way of scoring answers against its own, tasks, and scores."""

import json
import sys
import types

import datasets
import numpy as np
import pandas as pd
import pytest
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import fetch_task
import sample_benchmarks
import score_benchmarks
from calibration_tuning import benchmark_tasks, checkpoints, errors, files
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import benchmarks, packed_lm
from calibration_tuning.evaluations.item_response import Items
from tiny_models import ARCHITECTURES, build_model, build_tokenizer, save_tiny

SETTINGS = {
    "items": 6,
    "batch": 3,
    "context": 256,
    "tokens_at_a_time": 300,
    "max_new_tokens": 6,
    "dtype": "float32",
    "chat": {},
}
ENDINGS = [["runs", "sits down", "rests"], ["rain", "rained in", "snow"], ["a", "b", "abc"]]
ITEMS = {
    "retention-mini-hellaswag": [
        {"activity_label": "Sport", "ctx": f"Item {n}: he", "endings": e, "expected_index": n % 3}
        for n, e in enumerate(ENDINGS * 2)
    ],
    "retention-mini-truthfulqa": [
        {"question": f"Is {n} even?", "choices": ["yes", "no", "it depends"], "expected_index": 0}
        for n in range(5)
    ],
    "retention-mini-gsm8k": [
        {"prompt": f"What is {n} plus 1?", "expected": str(n + 1)} for n in range(4)
    ],
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The folder of each task, fetched from files."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, items in ITEMS.items():
        source = folder / f"{name}.jsonl"
        files.write_atomic(source, files.to_jsonl(items))
        settings = {"name": name, "source": f"path:{source}", "sha256": files.sha256(source)}
        manifest = benchmark_tasks.fetch(settings, folder / name, folder / "downloads")
        assert manifest["rows"] == {"test": len(items)}
    return {name: folder / name for name in ITEMS}


def evaluate(lm, folder):
    """As lm-eval alone would."""
    return simple_evaluate(
        model=lm,
        tasks=[benchmark_tasks.load(folder)],
        limit=SETTINGS["items"],
        apply_chat_template=True,
        gen_kwargs={"max_gen_toks": 6} if "gsm8k" in folder.name else None,
        log_samples=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_are_those_of_lm_eval_to_the_last_digit(architecture, tasks):
    model, tokenizer = build_model(architecture), build_tokenizer(architecture)
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=3, max_length=256)
    ours = packed_lm.PackedLM(model, tokenizer, SETTINGS)
    for name, folder in tasks.items():
        expected = evaluate(theirs, folder)
        found = evaluate(ours, folder)
        assert found["results"][name] == expected["results"][name]
        rows = packed_lm.run_task(ours, benchmark_tasks.load(folder), SETTINGS)
        frame = pd.DataFrame(rows, columns=["item", "metric", "value"])
        for metric, value in frame.groupby("metric")["value"].mean().items():
            if metric != benchmarks.CHANCE:
                assert value == expected["results"][name][metric]
        for mine, its in zip(
            found["samples"][name], expected["samples"][name], strict=True
        ):  # log likelihoods too, not only which is largest
            for a, b in zip(np.ravel(mine["resps"]), np.ravel(its["resps"]), strict=True):
                try:
                    assert float(a) == pytest.approx(float(b), rel=1e-4, abs=1e-4)
                except ValueError:
                    assert a == b


@pytest.mark.parametrize("context", [256, 12])
def test_log_likelihoods_are_lm_evals_also_where_the_beginning_is_cut(context):
    model, tokenizer = build_model("llama"), build_tokenizer("llama")
    rng = np.random.default_rng(0)
    shared = rng.integers(5, 90, 10).tolist()
    requests = [
        (None, shared[: rng.integers(1, 11)] + rng.integers(5, 90, 3).tolist(), continuation)
        for continuation in ([7, 8], [7], [7, 8, 9, 10], [20], [7, 8])
    ]
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, max_length=context)
    ours = packed_lm.PackedLM(
        model, tokenizer, SETTINGS | {"context": context, "tokens_at_a_time": 30}
    )
    expected = theirs._loglikelihood_tokens(requests, disable_tqdm=True)
    found = ours._loglikelihood_tokens(requests, disable_tqdm=True)
    for (value, greedy), (known, known_greedy) in zip(found, expected, strict=True):
        assert value == pytest.approx(known, rel=1e-5)
        assert greedy == known_greedy


def test_trees_hold_every_sequence_once_and_stay_within_their_size():
    rng = np.random.default_rng(1)
    inputs = [rng.integers(0, 3, rng.integers(1, 12)).tolist() for _ in range(60)]
    groups = packed_lm.plan_trees(inputs, 25)
    assert sorted(i for group in groups for i in group) == list(range(60))
    for group in groups:
        prefixes = {tuple(inputs[i][:n]) for i in group for n in range(1, len(inputs[i]) + 1)}
        assert len(prefixes) <= 25 or len(group) == 1
    assert len(groups) < 15  # 390 tokens; shared prefixes are counted once


def test_plain_templates_and_generation_prefixes_reach_the_prompt():
    model, tokenizer = build_model("llama"), build_tokenizer("llama")
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]

    def render(turns, prompt, **chat):
        lm = packed_lm.PackedLM(model, tokenizer, SETTINGS | {"chat": chat})
        return lm.apply_chat_template(turns, add_generation_prompt=prompt)

    assert render(turns[:1], True, generation_prefix="<start>") == (
        "<bos><start>user\nHi<end>\n<start>assistant\n<start>"
    )
    assert render(turns[:1], True, template="Q: {prompt}\nA:") == "Q: Hi\nA:"
    assert render(turns, False, template="Q: {prompt}\nA:") == "Q: Hi\nA:Yes"
    assert render(turns, False).endswith("<start>assistant\nYes")


@pytest.mark.parametrize(
    ("name", "metric"),
    [("tinyHellaswag", "acc_norm"), ("tinyGSM8k", "exact_match"), ("tinyTruthfulQA", "acc")],
)
def test_tinybenchmarks_tasks_are_read_without_the_package_they_import(name, metric):
    path = benchmark_tasks.find_definition(name)
    assert "tinyBenchmarks" in str(path)
    config = benchmark_tasks._read_definition(path)
    assert [entry["metric"] for entry in config["metric_list"]] == [metric]
    assert config["metric_list"][0]["aggregation"] == "mean"


def test_a_task_of_lm_evals_own_is_fetched_once_and_read_offline(tmp_path, monkeypatch):
    """tinyHellaswag, with a data set of the same columns in the hub's place."""
    rows = [
        {"ind": n, "activity_label": "Sport", "ctx_a": f"He {n}", "ctx_b": "then", "label": "1",
         "ctx": "", "endings": ["runs fast", "sits"], "split_type": "x", "source_id": str(n)}
        for n in range(12)
    ]  # fmt: skip
    data = datasets.DatasetDict(
        {s: datasets.Dataset.from_list(rows) for s in ("train", "validation")}
    )
    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda path, **kwargs: asked.append((path, kwargs)) or data
    )
    folder = tmp_path / "tinyHellaswag"
    manifest = benchmark_tasks.fetch({"name": "tinyHellaswag"}, folder, tmp_path / "downloads")
    assert manifest["source"] == "hub:tinyBenchmarks/tinyHellaswag"
    assert manifest["rows"] == {"train": 12, "validation": 12}
    assert asked[0][0] == "tinyBenchmarks/tinyHellaswag"
    assert asked[0][1]["cache_dir"] == str(tmp_path / "downloads" / "datasets")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("not offline"))
    lm = packed_lm.PackedLM(
        build_model("llama"), build_tokenizer("llama"), SETTINGS | {"context": 500}
    )
    found = packed_lm.run_task(lm, benchmark_tasks.load(folder), SETTINGS | {"items": 3})
    assert [row[:2] for row in found if row[1] != "chance"] == [
        (n, "acc_norm,none") for n in range(3)
    ]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            datasets.exceptions.DatasetNotFoundError("Dataset 'x' is a gated dataset on the Hub."),
            "tinyMMLU: hub:tinyBenchmarks/tinyMMLU: no such data set, or no access to it: if it is "
            "gated, accept its licence at https://huggingface.co/datasets/tinyBenchmarks/tinyMMLU "
            "and log in with `hf auth login`",
        ),
        (
            ConnectionError("Couldn't reach the Hub\nmore"),
            "cannot be loaded: Couldn't reach the Hub",
        ),
    ],
)
def test_a_gated_data_set_and_an_offline_node_are_one_line(tmp_path, monkeypatch, error, message):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(InputError) as caught:
        benchmark_tasks.fetch({"name": "tinyMMLU"}, tmp_path / "tinyMMLU", tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "tinyMMLU" / "manifest.json").exists()


def run(monkeypatch, program, *arguments):
    monkeypatch.setattr(sys, "argv", [program.__name__, *map(str, arguments)])
    errors.run(program.main)


def test_a_task_that_lm_eval_does_not_know_is_one_line(monkeypatch, tmp_path):
    settings = json.dumps({"name": "tinyHellaswga"})
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, fetch_task, "--settings", settings, "--downloads", tmp_path,
            "--output-directory", tmp_path / "out")  # fmt: skip
    assert str(caught.value).startswith(
        "error: evaluations.benchmarks.tasks: lm-eval has no task 'tinyHellaswga'; did you mean "
        "tinyHellaswag? expected one of retention-mini-gsm8k"
    )
    with pytest.raises(InputError, match="'tinyBenchmarks' is not a single task"):
        benchmark_tasks.find_definition("tinyBenchmarks")


@pytest.mark.parametrize("name", ["humaneval", "humaneval_instruct", "mbpp"])
def test_a_task_that_runs_programs_of_the_model_is_refused(name):
    with pytest.raises(InputError, match=f"'{name}' runs programs that the model writes"):
        benchmark_tasks.find_definition(name)


def test_items_that_lack_a_column_or_are_no_json_are_one_line(tmp_path):
    source = tmp_path / "items.jsonl"
    settings = {"name": "retention-mini-hellaswag", "source": f"path:{source}"}
    source.write_text('{"ctx": "a", "endings": ["b"], "expected_index": 0}\n')
    benchmark_tasks.fetch(settings, tmp_path / "task", tmp_path)
    with pytest.raises(
        InputError, match="cannot be made of its data: 'activity_label' is undefined"
    ):
        benchmark_tasks.load(tmp_path / "task")
    source.write_text('{"ctx": "a"}\n{"ctx"\n')
    with pytest.raises(InputError, match="line 2: not valid JSON"):
        benchmark_tasks.fetch(settings, tmp_path / "task", tmp_path)
    with pytest.raises(InputError, match="sha256"):
        benchmark_tasks.fetch(settings | {"sha256": "0" * 64}, tmp_path / "task", tmp_path)


def test_from_model_to_metrics_by_the_programs(monkeypatch, tmp_path, tasks):
    base = save_tiny("gemma3", tmp_path / "source")
    model = tmp_path / "model" / "manifest.json"
    checkpoints.fetch("tiny", {"source": f"path:{base}"}, model.parent, tmp_path / "downloads")
    cell = tmp_path / "cell"
    sample = (
        *("--model", model, "--settings", json.dumps(SETTINGS), "--seed", 11, "--threads", 1),
        *("--tasks", *(folder / "manifest.json" for folder in tasks.values())),
        *("--output-directory", cell),
    )
    run(monkeypatch, sample_benchmarks, *sample)
    assert not list(cell.glob("work-*"))
    run(monkeypatch, score_benchmarks, "--samples", cell / "samples.parquet", "--run",
        cell / "run.json", "--item-parameters", "--model", "tiny", "--method", "base", "--seed",
        11, "--output", cell / "metrics.json")  # fmt: skip
    splits = json.loads((cell / "metrics.json").read_text())["values"]["splits"]
    assert set(splits) == set(ITEMS)
    assert splits["retention-mini-hellaswag"]["metrics"]["chance"]["mean"] == pytest.approx(1 / 3)
    assert "chance" not in splits["retention-mini-gsm8k"]["metrics"]
    assert splits["retention-mini-gsm8k"]["metrics"]["score_flexible"]["n"] == 4
    before = (cell / "samples.parquet").read_bytes()
    # Killed after one task, it goes on with the others.
    monkeypatch.setattr(packed_lm, "run_task", _dies_at_the_second(packed_lm.run_task))
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, sample_benchmarks, *sample)
    monkeypatch.undo()
    assert len(list(cell.glob("work-*/retention-mini-*.json"))) == 1
    run(monkeypatch, sample_benchmarks, *sample)
    assert (cell / "samples.parquet").read_bytes() == before


def _dies_at_the_second(run_task):
    calls = []

    def dying(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run_task(*arguments)

    return dying


def frame_of(task, **metrics):
    rows = [(task, i, m, v) for m, values in metrics.items() for i, v in enumerate(values)]
    return pd.DataFrame(rows, columns=list(benchmarks.COLUMNS))


def test_scores_worked_by_hand():
    frame = pd.concat(
        [
            frame_of("tinyGSM8k", **{
                "exact_match,strict-match": [0, 0, 0, 0],
                "exact_match,flexible-extract": [1, 0, 0, 0],
            }),
            frame_of("tinyHellaswag", **{
                "acc,none": [0, 0, 0, 0], "acc_norm,none": [1, 1, 0, 1], "chance": [0.25] * 4
            }),
            frame_of("tinyTruthfulQA", **{"acc,none": [0.5, 0.25, 0.0, 0.25]}),
        ]
    )  # fmt: skip
    splits = benchmarks.score_cell(frame, {}, seed=0)["splits"]
    gsm8k = splits["tinyGSM8k"]["metrics"]
    assert gsm8k["score"]["mean"] == gsm8k["score"]["low"] == 0
    assert gsm8k["score"]["high"] == pytest.approx(1 - 0.025**0.25)  # exact at the floor
    assert gsm8k["score_flexible"]["mean"] == 0.25
    hellaswag = splits["tinyHellaswag"]
    assert hellaswag["metrics"]["score"]["mean"] == 0.75
    assert hellaswag["metrics"]["standard_error"]["mean"] == pytest.approx(0.25)
    assert hellaswag["metrics"]["chance"]["mean"] == 0.25
    assert (hellaswag["prompts"], hellaswag["samples"]) == (4, 4)
    truthful = splits["tinyTruthfulQA"]["metrics"]["score"]
    assert truthful["mean"] == 0.25
    assert 0 <= truthful["low"] < 0.25 < truthful["high"] <= 0.5
    shuffled = frame.sample(frac=1, random_state=1)
    assert benchmarks.score_cell(shuffled, {}, seed=0)["splits"] == splits


def test_gp_irt_stands_beside_the_mean_and_needs_every_item():
    items = Items(np.ones((8, 1)), np.zeros(8), np.arange(4), np.full(4, 0.25), 0.5)
    frame = frame_of("tinyHellaswag", **{"acc_norm,none": [1.0, 1.0, 0.0, 1.0]})
    metrics = benchmarks.score_cell(frame, {"hellaswag": items}, seed=0)["splits"]["tinyHellaswag"]
    assert metrics["metrics"]["score"]["mean"] == 0.75
    assert 0.5 < metrics["metrics"]["gp_irt"]["mean"] < 0.9
    with pytest.raises(InputError, match="3 items; gp-IRT needs all 4"):
        benchmarks.score_cell(frame[:3], {"hellaswag": items}, seed=0)


def test_damaged_scores_say_how_to_make_them_again(tmp_path):
    path = tmp_path / "samples.parquet"
    path.write_text("no")
    with pytest.raises(InputError, match="--forcerun sample_benchmarks"):
        benchmarks.read_samples(path)
    frame_of("a", **{"acc,none": [np.nan]}).to_parquet(path)
    with pytest.raises(InputError, match="without missing values"):
        benchmarks.read_samples(path)


def test_an_empty_module_stands_for_the_missing_package_only():
    module = sys.modules.get("tinyBenchmarks", types.ModuleType("x"))
    assert not hasattr(module, "evaluate")
