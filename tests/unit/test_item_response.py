"""gp-IRT on simulated models, and the file of published parameters, also a hostile one."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import item_response
from calibration_tuning.evaluations.item_response import Items, fit_ability, gp_irt, p_irt

SEEN = 100


def make_items(count=2000, dimensions=3, mixing=0.5, seed=0):
    """Items of which the seen ones are the first hundred: they are in random order anyway."""
    rng = np.random.default_rng(seed)
    alpha = rng.normal(0.4, 0.7, (count, dimensions))
    beta = rng.normal(0, 1.2, count)
    return Items(alpha, beta, np.arange(SEEN), np.full(SEEN, 1 / SEEN), mixing)


def answers(items, ability, rng):
    return (rng.random(len(items.beta)) < expit(items.alpha @ ability - items.beta)).astype(float)


def test_estimates_are_nearer_to_the_truth_than_the_plain_mean():
    errors = []
    for seed in range(8):
        items, rng = make_items(seed=seed), np.random.default_rng(100 + seed)
        for _ in range(40):
            right = answers(items, rng.normal(0, 1, 3), rng)
            asked = right[:SEEN]
            estimates = asked.mean(), p_irt(asked, items), gp_irt(asked, items)
            errors.append(np.array(estimates) - right.mean())
    plain, predicted, mixed = np.sqrt(np.mean(np.square(errors), axis=0))
    # Root mean squares, measured: 0.049, 0.031 and 0.036; none is biased.
    assert predicted < 0.75 * plain
    assert predicted < 0.036
    assert mixed < 0.042
    assert abs(np.mean(errors, axis=0)).max() < 0.005


def test_ability_is_recovered_as_items_grow():
    rng, distances = np.random.default_rng(2), []
    for count in (50, 500, 5000):
        items = make_items(count)
        abilities = rng.normal(0, 1, (20, 3))
        fitted = [fit_ability(answers(items, a, rng), items.alpha, items.beta) for a in abilities]
        distances.append(np.sqrt(np.mean((fitted - abilities) ** 2)))
    # Standard errors go with one over the root of the number of items.
    assert distances[1] < 0.45 * distances[0]
    assert distances[2] < 0.45 * distances[1]
    assert distances[2] < 0.08


def test_one_dimension_by_hand():
    """With alpha 1 and beta 0, three of four right is the logit of 3/4, but for the prior."""
    ability = fit_ability([1, 1, 1, 0], np.ones((4, 1)), np.zeros(4))
    assert ability == pytest.approx([np.log(3)], abs=0.02)
    items = Items(np.ones((8, 1)), np.zeros(8), np.arange(4), np.array([0.7, 0.1, 0.1, 0.1]), 0.25)
    probability = expit(ability[0])
    assert p_irt([1, 1, 1, 0], items) == pytest.approx(0.5 * 0.75 + 0.5 * probability)
    expected = 0.25 * 0.9 + 0.75 * (0.5 * 0.75 + 0.5 * probability)
    assert gp_irt([1, 1, 1, 0], items) == pytest.approx(expected)


def test_limits_of_the_mixing():
    responses = answers(make_items(), np.ones(3), np.random.default_rng(0))[:SEEN]
    assert gp_irt(responses, make_items(mixing=1.0)) == pytest.approx(responses.mean())
    assert gp_irt(responses, make_items(mixing=0.0)) == p_irt(responses, make_items())


@pytest.mark.parametrize("response", [0.0, 1.0])
def test_all_right_or_all_wrong_is_finite(response):
    items = make_items()
    ability = fit_ability(np.full(SEEN, response), items.alpha[:SEEN], items.beta[:SEEN])
    assert np.isfinite(ability).all()
    # Who knows more gets no item wrong for it.
    items = items._replace(alpha=np.abs(items.alpha))
    assert gp_irt(np.full(SEEN, response), items) == pytest.approx(response, abs=0.03)


def test_all_items_seen_is_their_mean():
    items = make_items(SEEN)
    assert p_irt(np.linspace(0, 1, SEEN), items) == pytest.approx(0.5)


def test_unequal_weight_of_items():
    """Two subjects, of 1 and of 3 items, count the same."""
    balance = np.array([2.0, 2 / 3, 2 / 3, 2 / 3])
    items = Items(np.ones((4, 1)), np.zeros(4), np.arange(4), np.full(4, 0.25), 0.0, balance)
    assert gp_irt([1, 0, 0, 0], items) == pytest.approx(0.5)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(12)), st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_the_order_of_the_asked_items_does_not_matter(order, responses):
    items, order = make_items(40), np.array(order)
    weights = np.arange(1, 13) / 78
    one = items._replace(seen=np.arange(12), weights=weights)
    other = items._replace(seen=order, weights=weights[order])
    responses = np.array(responses)
    # To what the optimiser is precise to.
    assert gp_irt(responses[order], other) == pytest.approx(gp_irt(responses, one), abs=1e-4)


@pytest.mark.parametrize("responses", [[0.5], [0.5, 1.2], [0.5, np.nan], [-0.1, 0]])
def test_responses_that_cannot_be(responses):
    with pytest.raises(ValueError, match="from 0 to 1 for every item"):
        fit_ability(responses, np.ones((2, 1)), np.zeros(2))


def published():
    """As the authors' package reads it: two scenarios in a common model, MMLU with its own too."""
    rng = np.random.default_rng(0)
    entry = {
        "seen_examples": [1, 0, 3, 5],
        "examples_weights": {"arc": np.array([0.25, 0.75]), "mmlu": np.array([0.5, 0.5])},
        "irt_parameters": {"A": rng.normal(size=(1, 2, 6)), "B": rng.normal(size=(1, 2, 6))},
        "optimal_lambdas": {"arc": np.float64(0.25), "mmlu": 0.5},
        "scenarios_position": {"arc": [0, 1, 2], "mmlu": [3, 4, 5]},
        "subscenarios_position": {"arc": {"all": [0, 1, 2]}, "mmlu": {"a": [3], "b": [4, 5]}},
    }
    own = {
        "seen_examples": np.array([2, 0]),
        "examples_weights": {"mmlu": np.array([0.1, 0.9])},
        "irt_parameters": {"A": np.ones((1, 2, 3)), "B": np.ones((1, 2, 3))},
        "optimal_lambdas": {"mmlu": 0.75},
        "scenarios_position": {"mmlu": [0, 1, 2]},
        "subscenarios_position": {"mmlu": {"a": [0], "b": [1, 2]}},
    }
    return {"lb": entry, "mmlu": own, "alpaca": {}}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_published_parameters(tmp_path, protocol):
    path = tmp_path / "tinyBenchmarks.pkl"
    content = published()
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    found = item_response.read_items(path)
    assert list(found) == ["arc", "mmlu"]
    arc, mmlu = found["arc"], found["mmlu"]
    parameters = content["lb"]["irt_parameters"]
    assert arc.seen.tolist() == [1, 0]
    np.testing.assert_array_equal(arc.alpha, parameters["A"][0, :, :3].T)
    np.testing.assert_allclose(arc.beta, parameters["B"][0, :, :3].sum(axis=0))
    assert (arc.mixing, arc.balance.tolist()) == (0.25, [1, 1, 1])
    # MMLU's own model; its two subjects count the same.
    assert (mmlu.mixing, mmlu.seen.tolist(), mmlu.beta.tolist()) == (0.75, [2, 0], [2, 2, 2])
    assert mmlu.balance.tolist() == [1.5, 0.75, 0.75]
    assert 0 <= gp_irt([1, 0], mmlu) <= 1
    del content["mmlu"]
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    in_common = item_response.read_items(path)["mmlu"]
    assert (in_common.seen.tolist(), in_common.mixing) == ([0, 2], 0.5)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
def test_names_of_numpy_1_and_2(tmp_path, protocol, core):
    # Later protocols prefix names by their length, which would be wrong after the replacement.
    written = pickle.dumps(published(), protocol=protocol)
    path = tmp_path / "parameters.pkl"
    path.write_bytes(written.replace(b"numpy._core", core))
    assert list(item_response.read_items(path)) == ["arc", "mmlu"]


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path, protocol):
    path, trace = tmp_path / "parameters.pkl", tmp_path / "trace"
    for function, argument, name in (
        (os.system, f"touch {trace}", r"posix\.system"),
        (eval, f"open({str(trace)!r}, 'w')", r"_*builtin(s|__)\.eval"),
    ):
        call = {"lb": Hostile(function, argument)}
        path.write_bytes(pickle.dumps(call, protocol=protocol))
        with pytest.raises(InputError, match=f"not of {name}$") as error:
            item_response.read_items(path)
        assert str(error.value).startswith(f"{path}: ")
    assert not trace.exists()


def without(key):
    content = published()
    del content["lb"][key]
    return content


def with_weights(weights):
    content = published()
    content["lb"]["examples_weights"]["arc"] = weights
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "expected the key lb or mmlu"),
        ([1], "expected the key lb or mmlu"),
        (without("optimal_lambdas"), "lb: expected the key optimal_lambdas"),
        (with_weights(np.ones(2)), "arc: weights that sum to 1"),
        (with_weights(np.ones(3)), "arc: a weight for each asked item"),
        ({"lb": 3}, "lb: expected item parameters"),
    ],
)
def test_what_a_file_of_parameters_must_have(tmp_path, content, message):
    path = tmp_path / "parameters.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=message) as error:
        item_response.read_items(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(published())[:200]])
def test_damaged_files(tmp_path, content):
    path = tmp_path / "parameters.pkl"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as a pickle"):
        item_response.read_items(path)
    with pytest.raises(InputError, match="cannot be read"):
        item_response.read_items(tmp_path / "missing.pkl")
