"""Targets from the CDF equal the enumerated trie: every family, every way of tokenizing."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_trie import END, grouped, single

from calibration_tuning import cdf_trie
from calibration_tuning.errors import InputError
from calibration_tuning.families import FAMILIES, Distribution
from calibration_tuning.number_tokens import number_tokens
from calibration_tuning.output_space import CellMasses
from calibration_tuning.prompts import build_prompts
from calibration_tuning.trie import CdfTrie, PrefixTrie, build_trie, path_targets

GRIDS = yaml.safe_load((Path(__file__).parents[2] / "config" / "families.yaml").read_text())
SELECTED = {
    prompt["family"]: prompt["params"]
    for split, records in build_prompts(GRIDS["families"], "families.yaml").items()
    if split.endswith("selected")
    for prompt in records
}
ENCODERS = [single, grouped]

_location = st.floats(-50, 50)
_scale = st.floats(0.05, 20)
_shape = st.floats(0.5, 20)
_share = st.floats(0.05, 0.95)
_count = st.integers(1, 40).map(float)
# Parameters of every family, in its order.
PARAMETERS = {
    "uniform": st.tuples(_location, _scale).map(lambda t: (t[0], t[0] + t[1])),
    "gaussian": st.tuples(_location, _scale),
    "beta": st.tuples(_shape, _shape),
    "binomial": st.tuples(_count, _share),
    "exponential": st.tuples(_scale),
    "geometric": st.tuples(_share),
    "negative_binomial": st.tuples(_count, st.floats(0.2, 0.95)),
    "lognormal": st.tuples(st.floats(-2, 2), st.floats(0.1, 1)),
    "triangular": st.tuples(_location, _scale, _share).map(
        lambda t: (t[0], t[0] + t[1] * t[2], t[0] + t[1])
    ),
    "rayleigh": st.tuples(_scale),
    "cauchy": st.tuples(_location, st.floats(0.05, 1)),
    "student_t": st.tuples(st.floats(2, 20)),
    "chi_square": st.tuples(_shape),
    "f_distribution": st.tuples(st.floats(2, 20), st.floats(5, 20)),
    "gamma": st.tuples(_shape, st.floats(0.1, 3)),
    "laplace": st.tuples(_location, _scale),
    "logistic": st.tuples(_location, _scale),
    "pareto": st.tuples(st.floats(2, 9), _scale),
    "hypergeometric": st.just((60.0, 24.0, 15.0)),
    "gumbel": st.tuples(_location, _scale),
    "skellam": st.tuples(st.floats(0.5, 20), st.floats(0.5, 20)),
    "beta_binomial": st.tuples(_count, st.floats(0.5, 8), st.floats(0.5, 8)),
    "lomax": st.tuples(st.floats(2, 9), _scale),
    "inverse_gaussian": st.tuples(st.floats(0.5, 6), st.floats(0.5, 8)),
    "bernoulli": st.tuples(_share),
    "poisson": st.tuples(st.floats(0.1, 200)),
    "weibull": st.tuples(st.floats(0.6, 5), _scale),
    "maxwell": st.tuples(_scale),
    "chi": st.tuples(_shape),
    "truncnorm": st.tuples(st.floats(-1, 1), st.floats(0.5, 2)).map(lambda t: (*t, -1.5, 2.5)),
}


def tries(distribution, decimals, encode):
    """The enumerated trie of all points, and the one from the CDF."""
    space = distribution.output_space(decimals, 10**9)
    return (
        PrefixTrie(space.texts, space.probabilities, encode, END),
        CdfTrie(distribution, decimals, encode, END),
    )


def assert_equal_targets(enumerated, exact, prefixes):
    for prefix in prefixes:
        tokens, q = enumerated.next_tokens(prefix)
        mine = dict(zip(*(x.tolist() for x in exact.next_tokens(prefix)), strict=True))
        assert sum(mine.values()) == pytest.approx(1, abs=1e-12)
        theirs = dict(zip(tokens.tolist(), q.tolist(), strict=True))
        for token in mine.keys() | theirs.keys():
            assert abs(mine.get(token, 0.0) - theirs.get(token, 0.0)) < 1e-9


def prefixes_along(paths):
    return {path[:depth] for path in paths for depth in range(len(path))}


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_equals_the_enumerated_trie(family, encode, data):
    values = data.draw(PARAMETERS[family])
    decimals = data.draw(st.integers(0, 2))
    distribution = Distribution(family, dict(zip(FAMILIES[family].parameters, values, strict=True)))
    try:
        cells = CellMasses(distribution.functions, distribution.is_integer, decimals)
    except InputError:  # no number with so few decimals
        return
    assume(cells.last - cells.first < 20_000)
    enumerated, exact = tries(distribution, decimals, encode)
    rng = np.random.default_rng(0)
    paths = enumerated.sample_paths(rng, 12) + exact.sample_paths(rng, 12)
    paths += enumerated.sequences[:2] + enumerated.sequences[-2:]
    assert_equal_targets(enumerated, exact, prefixes_along(paths))


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_prefix_of_a_selected_prompt(family, encode):
    decimals = 0 if family in ("cauchy", "lognormal") else 1
    enumerated, exact = tries(Distribution(family, SELECTED[family]), decimals, encode)
    assert_equal_targets(enumerated, exact, prefixes_along(enumerated.sequences[::7]))


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    ("family", "params"),
    [("gaussian", {"mu": 0.3, "sigma": 4.0}), ("skellam", {"mu1": 40.0, "mu2": 30.0})],
)
def test_branches_weigh_paths_by_their_length(encode, family, params):
    enumerated, exact = tries(Distribution(family, params), 1, encode)
    prefixes = sorted(prefixes_along(enumerated.sequences))
    one, other = enumerated.branches(prefixes), exact.branches(prefixes)
    assert one.row.tolist() == other.row.tolist()
    assert one.token.tolist() == other.token.tolist()
    total = other.mass[other.row == 0].sum()
    assert np.allclose(one.mass, other.mass / total, rtol=0, atol=1e-12)
    assert np.allclose(one.mass_over_length, other.mass_over_length / total, rtol=0, atol=1e-12)


@pytest.mark.parametrize("encode", ENCODERS)
def test_the_mass_of_the_children_is_that_of_the_prefix(encode):
    trie = CdfTrie(Distribution("cauchy", {"x0": 0.0, "gamma": 2.0}), 5, encode, END)
    paths = trie.sample_paths(np.random.default_rng(2), 50)
    mass_of = {}
    for prefix in sorted(prefixes_along(paths), key=len):
        found = trie.branches([prefix])
        for token, mass in zip(found.token.tolist(), found.mass, strict=True):
            mass_of[(*prefix, token)] = mass
        if prefix:
            # Cells in the far tail have a mass of 1e-11.
            assert found.mass.sum() == pytest.approx(mass_of[prefix], rel=1e-9)


@pytest.mark.parametrize("encode", ENCODERS)
def test_the_product_along_a_path_is_the_mass_of_its_cell(encode):
    distribution = Distribution("gaussian", {"mu": 3.5, "sigma": 3.0})
    trie = CdfTrie(distribution, 5, encode, END)
    for path in trie.sample_paths(np.random.default_rng(1), 20):
        product = 1.0
        for depth, token in enumerate(path):
            tokens, q = trie.next_tokens(path[:depth])
            product *= q[tokens == token].item()
        value = float(trie.text(path))
        low, high = value - 5e-6, value + 5e-6
        assert product == pytest.approx(
            distribution.scipy.cdf(high) - distribution.scipy.cdf(low), rel=1e-6
        )
        assert path == (*encode(trie.text(path)), END)


@pytest.mark.parametrize("sign", [-1, 1])
def test_cells_in_both_tails_are_as_precise_as_in_the_middle(sign):
    """Near 1 a CDF has no digits left for a cell of 1e-11."""
    distribution = Distribution("cauchy", {"x0": 0.0, "gamma": 3.0})
    cells = CellMasses(distribution.functions, False, 5)
    number = sign * 900 * 10**5
    mass = cells.mass(np.array([number]), np.array([number + 1]))[0]
    assert mass == pytest.approx(distribution.scipy.pdf(900.0) * 1e-5, rel=1e-6)


def test_the_tails_belong_to_the_outermost_texts():
    distribution = Distribution("exponential", {"lambda": 1.0})
    enumerated, exact = tries(distribution, 1, single)
    last = enumerated.sequences[-1]
    assert enumerated.text(last) == "6.9"
    q = exact.next_tokens(last[:-2])[1]
    assert q[-1] > 9 * q[-2]  # the last cell also has everything above it


@pytest.mark.parametrize("encode", ENCODERS)
def test_samples_follow_the_target(encode):
    distribution = Distribution("poisson", {"lambda": 4.0})
    trie = CdfTrie(distribution, 5, encode, END)
    space = distribution.output_space(0, 1)
    values = [trie.text(path) for path in trie.sample_paths(np.random.default_rng(5), 8000)]
    for text, probability in zip(*space, strict=True):
        bound = 4.5 * np.sqrt(8000 * probability) + 1
        assert abs(values.count(text) - 8000 * probability) < bound
    rng = np.random.default_rng(5)
    assert trie.sample(rng) == trie.sample_paths(np.random.default_rng(5), 1)[0]


@pytest.mark.parametrize("encode", ENCODERS)
@pytest.mark.parametrize(
    "text", ["99", "-", "x", ".", "1.", "1.234", "01", "00", "3..", "3-", "--3", "3.1.", "5"]
)
def test_prefixes_off_the_trie_are_key_errors(encode, text):
    trie = CdfTrie(Distribution("uniform", {"a": 2.0, "b": 4.25}), 2, encode, END)
    with pytest.raises(KeyError):
        trie.next_tokens(tuple(encode(text)))


@pytest.mark.parametrize("encode", ENCODERS)
def test_nothing_follows_the_end(encode):
    trie = CdfTrie(Distribution("bernoulli", {"p": 0.3}), 2, encode, END)
    assert trie.next_tokens(tuple(encode("1")))[0].tolist() == [END]
    for prefix in ((*encode("1"), END), tuple(encode("1")) * 2, tuple(encode("2"))):
        with pytest.raises(KeyError):
            trie.next_tokens(prefix)


def test_five_decimals_of_a_wide_distribution_cost_no_memory(monkeypatch):
    """590 million texts; no array has more than a few thousand entries."""
    sizes = []
    original = CellMasses.mass
    monkeypatch.setattr(
        CellMasses,
        "mass",
        lambda self, low, high: sizes.append(len(low)) or original(self, low, high),
    )
    distribution = Distribution("lognormal", {"mu": 2.5, "sigma": 2.0})
    trie = build_trie(distribution, 5, "full", single, END)
    assert isinstance(trie, CdfTrie)
    found = path_targets(trie, trie.sample_paths(np.random.default_rng(0), 16))
    assert np.bincount(found.row, found.probability) == pytest.approx(1, abs=1e-9)
    assert max(sizes) < 5000


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: [ord(c) for c in text.replace("12", "x")],  # a token of two digits
        lambda text: [7] * len(text),  # all digits alike
        lambda text: [ord(c) for c in text[::-1]],  # from the right
        lambda text: [hash(text)],
    ],
)
def test_a_tokenizer_that_writes_numbers_otherwise_is_refused(encode):
    with pytest.raises(ValueError, match="the tokenizer"):
        number_tokens(encode)


def test_full_resolution_with_such_a_tokenizer_is_one_clear_line():
    distribution = Distribution("gaussian", {"mu": 0.0, "sigma": 1.0})
    with pytest.raises(InputError, match=r"max_bins: full: the tokenizer .*expected a number"):
        build_trie(distribution, 2, "full", lambda text: [7] * len(text), END)


def test_a_thinned_grid_is_listed():
    distribution = Distribution("gaussian", {"mu": 0.0, "sigma": 1.0})
    assert isinstance(build_trie(distribution, 2, 1001, single, END), PrefixTrie)
    assert cdf_trie.CdfTrie is CdfTrie


@given(st.floats(-3, 3), st.floats(0.1, 3), st.integers(-500, 500), st.integers(0, 500))
def test_runs_add_up(mu, sigma, start, length):
    cells = CellMasses(Distribution("gaussian", {"mu": mu, "sigma": sigma}).functions, False, 2)
    edges = np.array([start, start + length // 2, start + length])
    parts = cells.mass(edges[:-1], edges[1:])
    whole = cells.mass(edges[:1], edges[2:])
    assert parts.sum() == pytest.approx(whole[0], abs=1e-15)
    everything = cells.mass(np.array([-(10**9)]), np.array([10**9]))
    assert everything[0] == pytest.approx(1, abs=1e-15)
