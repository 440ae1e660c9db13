"""Accuracy on all items of a benchmark from a hundred of them (gp-IRT).

Polo et al. 2024, "tinyBenchmarks: evaluating LLMs with fewer examples", arXiv 2402.14992. In a
multidimensional two-parameter model the probability that a language model of ability theta gets
item i right is sigmoid(alpha_i . theta - beta_i). The ability is fitted to the hundred responses
(p-IRT predicts the others with it), and the prediction is mixed with a weighted mean of the same
responses (gp-IRT).

The authors publish item parameters as a pickle. `read_items` follows how their package reads it;
it was never tried on the published file itself, which is on no registry.
"""

import collections
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.optimize
from numpy._core import multiarray, numeric
from scipy.special import expit

from calibration_tuning.errors import InputError

RIDGE = 0.01
"""Precision of the Gaussian prior of each ability: finite where everything is right or wrong."""
BENCHMARKS = ("lb", "mmlu")
"""Of the published file: the Open LLM Leaderboard's six scenarios, then MMLU with a model of its
own, which is preferred as in the authors' package."""
KEYS = (
    *("seen_examples", "examples_weights", "irt_parameters", "optimal_lambdas"),
    *("scenarios_position", "subscenarios_position"),
)


class Items(NamedTuple):
    """Parameters of all items of a scenario, and which of them are asked.

    Parameters
    ----------
    alpha : float64 array (items, dimensions)
        Discriminations.
    beta : float64 array (items,)
        Difficulties.
    seen : int array (asked,)
        The items that are asked, in the order of the responses.
    weights : float64 array (asked,)
        Of the responses, for the weighted mean; they sum to 1.
    mixing : float
        Share of the weighted mean in gp-IRT, 0 to 1.
    balance : float64 array (items,) or None
        What an item counts in the scenario's score, 1 on average; None if all count the same.
        MMLU's score is a mean over subjects of different sizes.
    """

    alpha: np.ndarray
    beta: np.ndarray
    seen: np.ndarray
    weights: np.ndarray
    mixing: float
    balance: np.ndarray | None = None


def fit_ability(responses: np.ndarray, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The most likely ability, under a wide Gaussian prior (`RIDGE`).

    Parameters
    ----------
    responses : float array (n,)
        0 to 1 each; a response in between, such as TruthfulQA's mc2, counts as partly right.
    alpha : float array (n, dimensions)
    beta : float array (n,)
        Parameters of the same items.

    Returns
    -------
    float64 array (dimensions,)

    Raises
    ------
    ValueError
        Responses that are not from 0 to 1, or not as many as items.
    """
    responses = np.asarray(responses, dtype=np.float64)
    if responses.shape != np.shape(beta) or not ((responses >= 0) & (responses <= 1)).all():
        raise ValueError("expected a response from 0 to 1 for every item")

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Negative log likelihood and prior, convex, and the gradient."""
        logits = alpha @ theta - beta
        value = np.sum(np.logaddexp(0, logits) - responses * logits) + RIDGE / 2 * theta @ theta
        return value, alpha.T @ (expit(logits) - responses) + RIDGE * theta

    start = np.zeros(np.shape(alpha)[1])
    return scipy.optimize.minimize(loss, start, jac=True, method="BFGS").x


def p_irt(responses: np.ndarray, items: Items) -> float:
    """Estimated mean over all items: of the responses, and of predictions for the others.

    Parameters
    ----------
    responses : float array (asked,)
        To `items.seen`, in their order; 0 to 1 each.
    items : Items

    Raises
    ------
    ValueError
        See `fit_ability`.
    """
    seen = np.asarray(items.seen)
    responses = np.asarray(responses, dtype=np.float64)
    balance = np.ones(len(items.beta)) if items.balance is None else items.balance
    ability = fit_ability(responses, items.alpha[seen], items.beta[seen])
    unseen = np.ones(len(items.beta), dtype=bool)
    unseen[seen] = False
    known = float(np.mean(balance[seen] * responses))
    if not unseen.any():
        return known
    probabilities = expit(items.alpha[unseen] @ ability - items.beta[unseen])
    share = len(seen) / len(items.beta)
    return share * known + (1 - share) * float(np.mean(balance[unseen] * probabilities))


def gp_irt(responses: np.ndarray, items: Items) -> float:
    """p-IRT mixed with the weighted mean of the responses; see `p_irt`."""
    weighted = float(np.asarray(responses, dtype=np.float64) @ items.weights)
    return items.mixing * weighted + (1 - items.mixing) * p_irt(responses, items)


def read_items(path: Path) -> dict[str, Items]:
    """The published parameters (tinyBenchmarks.pkl).

    A pickled dict whose entries "lb" and "mmlu" have the keys `KEYS`: positions of the asked
    items, their weights by scenario, {"A", "B"} of shape (1, dimensions, items), the mixing by
    scenario, and the positions of a scenario's and a subscenario's items. Nothing in the file is
    run: only arrays, numbers, texts and containers are read.

    Returns
    -------
    dict of scenario (arc, gsm8k, hellaswag, mmlu, truthfulqa, winogrande) to Items

    Raises
    ------
    InputError
        If it cannot be read, holds anything else, or lacks a key.
    """
    content = _unpickle(path)
    found = [name for name in BENCHMARKS if isinstance(content, Mapping) and name in content]
    if not found:
        raise InputError(f"{path}: expected the key {BENCHMARKS[0]} or {BENCHMARKS[1]}")
    result = {}
    for name in found:
        try:
            result |= _scenarios(*(content[name][key] for key in KEYS))
        except KeyError as error:
            raise InputError(f"{path}: {name}: expected the key {error.args[0]}") from None
        except (IndexError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: {name}: expected item parameters ({error})") from None
    return dict(sorted(result.items()))


def _scenarios(
    seen: list[int],
    weights: Mapping,
    parameters: Mapping,
    mixing: Mapping,
    positions: Mapping,
    parts: Mapping,
) -> dict[str, Items]:
    """Items by scenario, from the values of `KEYS` in their order."""
    alpha = np.asarray(parameters["A"], dtype=np.float64)[0]
    # Their logit is the sum over dimensions of alpha theta - B: the sum of B is one difficulty.
    beta = np.broadcast_to(np.asarray(parameters["B"], dtype=np.float64)[0], alpha.shape).sum(0)
    result = {}
    for scenario in positions:
        place = {int(position): i for i, position in enumerate(positions[scenario])}
        balance = np.ones(len(place))
        for part in parts[scenario].values():
            inside = [place[int(position)] for position in part]
            balance[inside] = len(place) / (len(parts[scenario]) * len(inside))
        chosen = list(place)
        items = Items(
            alpha[:, chosen].T,
            beta[chosen],
            np.array([place[int(position)] for position in seen if int(position) in place]),
            np.asarray(weights[scenario], dtype=np.float64).ravel(),
            float(np.asarray(mixing[scenario]).item()),
            balance,
        )
        _check(scenario, items)
        result[scenario] = items
    return result


def _check(scenario: str, items: Items) -> None:
    """ValueError where numbers cannot be what they should."""
    if not len(items.seen) or items.weights.shape != items.seen.shape:
        raise ValueError(f"{scenario}: a weight for each asked item")
    if not abs(items.weights.sum() - 1) < 1e-3 or not 0 <= items.mixing <= 1:
        raise ValueError(f"{scenario}: weights that sum to 1 and a mixing from 0 to 1")
    if not np.isfinite(items.alpha).all() or not np.isfinite(items.beta).all():
        raise ValueError(f"{scenario}: finite A and B")


def _encode(text: str, encoding: str) -> bytes:
    """What old protocols write bytes as; `codecs.encode` itself would do more than that."""
    if encoding != "latin1":
        raise ValueError(f"unexpected encoding {encoding}")
    return text.encode(encoding)


# All that a pickle may refer to, under the names of Python 2 and 3 and of NumPy 1 and 2.
_ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): collections.OrderedDict,
}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = multiarray._reconstruct
    _ALLOWED[f"{_core}.multiarray", "scalar"] = multiarray.scalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = numeric._frombuffer
for _builtins in ("builtins", "__builtin__"):
    _ALLOWED |= {(_builtins, "set"): set, (_builtins, "frozenset"): frozenset}


class _Refused(Exception):
    """A pickle refers to something else; the name of it."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise _Refused(f"{module}.{name}")
        return _ALLOWED[module, name]


def _unpickle(path: Path) -> object:
    try:
        with open(path, "rb") as file:
            return _Unpickler(file).load()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except _Refused as error:
        raise InputError(
            f"{path}: expected a pickle of arrays, numbers, texts and containers, not of {error}"
        ) from None
    except Exception as error:  # damaged pickles raise almost anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: cannot be read as a pickle ({reason})") from None
