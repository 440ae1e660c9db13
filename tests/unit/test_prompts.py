"""The prompts of the paper: counts, texts and what a user can get wrong."""

import copy
import json
import re
from pathlib import Path

import pytest

from calibration_tuning import families, planning, prompts
from calibration_tuning.errors import InputError
from calibration_tuning.families import format_number

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
FAMILIES = planning.load_yaml(ROOT / "config" / "families.yaml")
SCHEMA = planning.load_yaml(ROOT / "workflow" / "schemas" / "families.schema.yaml")
BUILT = prompts.build_prompts(FAMILIES["families"], "families.yaml")
EXPECTED_COUNTS = json.loads((DATA / "expected.json").read_text())["counts"]
SAMPLE = json.loads((DATA / "prompts_sample.json").read_text())


def test_counts():
    assert {name: len(records) for name, records in BUILT.items()} == {
        "train": EXPECTED_COUNTS["train"],
        "unseen": EXPECTED_COUNTS["unseen_parameters"],
        "heldout": EXPECTED_COUNTS["heldout_families"],
        "unseen_selected": EXPECTED_COUNTS["unseen_selected"],
        "heldout_selected": EXPECTED_COUNTS["heldout_selected"],
    }


def reformatted(prompt):
    """The authors' prompt with its raw floats in our format."""
    return re.sub(
        r"(?<==)-?[\d.]+(?:e-?\d+)?(?=[,.])", lambda m: format_number(float(m[0])), prompt
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("train", "train"), ("test_unseen_params", "unseen"), ("test_ood_family", "heldout")],
)
def test_every_prompt_of_the_sample_is_built(theirs, ours):
    built = {record["prompt"]: record for record in BUILT[ours]}
    for expected in SAMPLE[theirs]:
        record = built[reformatted(expected["prompt"])]
        assert record["family"] == expected["family"]
        assert list(record["params"]) == list(expected["params"])
        assert record["params"] == pytest.approx(expected["params"], abs=1e-9)


def test_prompts_are_distinct_and_splits_do_not_overlap():
    texts = [record["prompt"] for name in ("train", "unseen", "heldout") for record in BUILT[name]]
    assert len(set(texts)) == len(texts)
    training = {record["prompt"] for record in BUILT["train"]}
    assert not training & {record["prompt"] for record in BUILT["unseen_selected"]}


def test_the_shipped_file_is_valid_and_the_schema_knows_every_family():
    planning.validate(FAMILIES, SCHEMA, "families.yaml")
    names = SCHEMA["properties"]["families"]["propertyNames"]["enum"]
    assert sorted(names) == sorted(families.FAMILIES) == sorted(FAMILIES["families"])


def test_a_grid_is_picked_evenly_to_its_count():
    grid = {"count": 3, "parameters": {"p": [0.1, 0.2, 0.3], "q": {"linspace": [0, 1, 3]}}}
    assert [(r["p"], r["q"]) for r in prompts.grid_rows(grid)] == [
        (0.1, 0.0),
        (0.2, 0.5),
        (0.3, 1.0),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(gausian=f.pop("gaussian")), "families.gausian: no such family"),
        (lambda f: f["chi"]["selected"].append({"nu": 2}), "chi: expected the parameters df"),
        (lambda f: f["chi"]["selected"].append({"df": -2}), "no such distribution with df=-2"),
        (lambda f: f["uniform"]["selected"].append({"a": 2}), "expected the grid parameters a, w"),
        (
            lambda f: f["uniform"]["selected"].append({"a": 2, "width": 1, "b": 3}),
            "uniform: expected the grid parameters a, width, got a, width, b",
        ),
        (lambda f: f["chi"]["heldout"].update(count=10), "chi.heldout.count: expected at most 9"),
    ],
)
def test_mistakes_in_the_grids_are_named(change, message):
    grids = copy.deepcopy(FAMILIES["families"])
    change(grids)
    with pytest.raises(InputError, match=message):
        prompts.build_prompts(grids, "families.yaml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f["chi"]["heldout"].update(cuont=3), "unknown key families.chi.heldout.cuont"),
        (lambda f: f["chi"]["heldout"].update(count="1e1"), "YAML reads a number"),
        (lambda f: f["chi"].pop("heldout"), "families.chi.train: this key is required"),
        (lambda f: f["gaussian"].pop("unseen"), "families.gaussian.unseen: this key is required"),
        (
            lambda f: f["gaussian"].update(heldout=f["gaussian"]["train"]),
            "unknown key families.gaussian.train; expected one of: heldout, selected",
        ),
        (
            lambda f: f["chi"]["heldout"]["parameters"].update(df={"linspace": [1, 2, 0]}),
            "families.chi.heldout.parameters.df.linspace.2",
        ),
        (
            lambda f: f["chi"]["heldout"]["parameters"].update(df={"linspace": [1, 2, 2.5]}),
            "families.chi.heldout.parameters.df.linspace.2",
        ),
        (
            lambda f: f["chi"]["heldout"]["parameters"].update(df={"geomspace": [0, 2, 3]}),
            "families.chi.heldout.parameters.df.geomspace.0",
        ),
        (
            lambda f: f["chi"]["heldout"]["parameters"].update(df={"linspace": [1, 2]}),
            "families.chi.heldout.parameters.df.linspace",
        ),
    ],
)
def test_mistakes_in_the_file_are_named(change, message):
    content = copy.deepcopy(FAMILIES)
    change(content["families"])
    with pytest.raises(InputError, match=re.escape(message)):
        planning.validate(content, SCHEMA, "families.yaml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: expected a JSON object"),
        ('{"family": "gaussian"}', "line 2: expected a JSON object"),
        ('{"family": "gausian", "params": {}, "prompt": ""}', "line 2: family 'gausian'"),
        (
            '{"family": "chi", "params": {"df": NaN}, "prompt": ""}',
            "line 2: family chi: df: expected a finite number",
        ),
    ],
)
def test_a_broken_prompt_file_is_named(tmp_path, line, message):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(BUILT["train"][0]) + "\n" + line + "\n")
    with pytest.raises(InputError, match=re.escape(message)):
        prompts.read_prompts(path)


def test_a_prompt_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="expected text in UTF-8"):
        prompts.read_prompts(path)
