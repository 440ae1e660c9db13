"""The 30 distribution families as a table (Paper A, appendix on families).

A family has a display name for prompts, its parameters in the order in which prompts list them,
and a scipy constructor. A new family is a row of `FAMILIES` and a grid in config/families.yaml.
"""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import NamedTuple

from scipy import stats

from calibration_tuning.errors import InputError
from calibration_tuning.output_space import OutputSpace, continuous_space, integer_space


class Family(NamedTuple):
    """A row of the table.

    `arguments` turns the parameters, in order, into the positional arguments of the scipy
    distribution: its shapes, then location and scale.
    """

    display_name: str
    parameters: tuple[str, ...]
    scipy: stats.rv_continuous | stats.rv_discrete
    arguments: Callable[..., tuple[float, ...]] = lambda *parameters: parameters

    @property
    def is_integer(self) -> bool:
        """Whether its values are integers."""
        return isinstance(self.scipy, stats.rv_discrete)


FAMILIES: dict[str, Family] = {
    "uniform": Family("Uniform", ("a", "b"), stats.uniform, lambda a, b: (a, b - a)),
    "gaussian": Family("Gaussian", ("mu", "sigma"), stats.norm),
    "beta": Family("Beta", ("alpha", "beta"), stats.beta),
    "binomial": Family("Binomial", ("n", "p"), stats.binom),
    "exponential": Family("Exponential", ("lambda",), stats.expon, lambda rate: (0, 1 / rate)),
    "geometric": Family("Geometric", ("p",), stats.geom),
    "negative_binomial": Family("Negative Binomial", ("r", "p"), stats.nbinom),
    "lognormal": Family(
        "LogNormal", ("mu", "sigma"), stats.lognorm, lambda mu, sigma: (sigma, 0, math.exp(mu))
    ),
    "triangular": Family(
        "Triangular",
        ("a", "c", "b"),
        stats.triang,
        lambda a, c, b: ((c - a) / (b - a), a, b - a),
    ),
    "rayleigh": Family("Rayleigh", ("sigma",), stats.rayleigh, lambda sigma: (0, sigma)),
    "cauchy": Family("Cauchy", ("x0", "gamma"), stats.cauchy),
    "student_t": Family("Student's t", ("nu",), stats.t),
    "chi_square": Family("Chi-Square", ("nu",), stats.chi2),
    "f_distribution": Family("F-Distribution", ("d1", "d2"), stats.f),
    "gamma": Family("Gamma", ("alpha", "beta"), stats.gamma, lambda alpha, s: (alpha, 0, s)),
    "laplace": Family("Laplace", ("mu", "b"), stats.laplace),
    "logistic": Family("Logistic", ("mu", "s"), stats.logistic),
    "pareto": Family("Pareto", ("alpha", "xm"), stats.pareto, lambda alpha, xm: (alpha, 0, xm)),
    "hypergeometric": Family("Hypergeometric", ("M", "K", "N"), stats.hypergeom),
    "gumbel": Family("Gumbel", ("mu", "beta"), stats.gumbel_r),
    "skellam": Family("Skellam", ("mu1", "mu2"), stats.skellam),
    "beta_binomial": Family("Beta-Binomial", ("n", "alpha", "beta"), stats.betabinom),
    "lomax": Family("Lomax", ("alpha", "lambda"), stats.lomax, lambda alpha, s: (alpha, 0, s)),
    "inverse_gaussian": Family(
        "Inverse Gaussian", ("mu", "lambda"), stats.invgauss, lambda mu, s: (mu / s, 0, s)
    ),
    "bernoulli": Family("Bernoulli", ("p",), stats.bernoulli),
    "poisson": Family("Poisson", ("lambda",), stats.poisson),
    "weibull": Family("Weibull", ("k", "lambda"), stats.weibull_min, lambda k, s: (k, 0, s)),
    "maxwell": Family("Maxwell", ("scale",), stats.maxwell, lambda scale: (0, scale)),
    "chi": Family("Chi", ("df",), stats.chi),
    "truncnorm": Family(
        "TruncNorm",
        ("mu", "sigma", "lower", "upper"),
        stats.truncnorm,
        lambda mu, sigma, lower, upper: ((lower - mu) / sigma, (upper - mu) / sigma, mu, sigma),
    ),
}


class Functions(NamedTuple):
    """The functions of a scipy distribution with its arguments filled in.

    The same as those of a frozen distribution. Freezing makes scipy compile source code anew each
    time, which takes longer than all that training asks of a distribution.
    """

    distribution: stats.rv_continuous | stats.rv_discrete
    arguments: tuple[float, ...]

    def support(self) -> tuple[float, float]:
        return self.distribution.support(*self.arguments)

    def cdf(self, x):
        return self.distribution.cdf(x, *self.arguments)

    def sf(self, x):
        return self.distribution.sf(x, *self.arguments)

    def ppf(self, q):
        return self.distribution.ppf(q, *self.arguments)

    def pmf(self, k):
        return self.distribution.pmf(k, *self.arguments)


def format_number(value: float) -> str:
    """The shortest decimal form that is right to 6 significant digits."""
    return format(value + 0.0, ".6g")  # + 0.0 turns -0.0 into 0.0


@dataclass(frozen=True)
class Distribution:
    """A family with its parameters.

    Parameters
    ----------
    family : str
        A key of `FAMILIES`.
    params : dict of str to float
        Every parameter of the family, by name.

    Raises
    ------
    InputError
        For an unknown family, missing or unknown parameters, or values it does not exist for.
    """

    family: str
    params: dict[str, float]

    def __post_init__(self):
        if self.family not in FAMILIES:
            close = difflib.get_close_matches(self.family, FAMILIES, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(
                f"family {self.family!r} does not exist; {hint}expected one of: "
                f"{', '.join(FAMILIES)}"
            )
        expected = FAMILIES[self.family].parameters
        if set(self.params) != set(expected):
            raise InputError(
                f"family {self.family}: expected the parameters {', '.join(expected)}, "
                f"got {', '.join(self.params) or 'none'}"
            )
        for name, value in self.params.items():
            if not isinstance(value, Real) or not math.isfinite(value):
                raise InputError(
                    f"family {self.family}: {name}: expected a finite number, got {value!r}"
                )

    def __hash__(self) -> int:
        return hash((self.family, tuple(sorted(self.params.items()))))

    @cached_property
    def functions(self) -> Functions:
        """Its distribution function and the like; InputError if it doesn't exist."""
        family = FAMILIES[self.family]
        values = [self.params[name] for name in family.parameters]
        try:
            functions = Functions(family.scipy, family.arguments(*values))
            checks = [*functions.support(), functions.ppf(0.5)]
        except (ArithmeticError, TypeError, ValueError):
            checks = [math.nan]
        if any(math.isnan(check) for check in checks):
            shown = ", ".join(f"{name}={self.params[name]}" for name in family.parameters)
            raise InputError(f"family {self.family}: no such distribution with {shown}")
        return functions

    @cached_property
    def scipy(self):
        """The frozen scipy distribution."""
        return self.functions.distribution(*self.functions.arguments)

    @property
    def display_name(self) -> str:
        """The name that prompts use."""
        return FAMILIES[self.family].display_name

    @property
    def is_integer(self) -> bool:
        """Whether its values are integers."""
        return FAMILIES[self.family].is_integer

    @property
    def support(self) -> tuple[float, float]:
        """Lowest and highest possible value; may be infinite."""
        low, high = self.functions.support()
        return float(low), float(high)

    @property
    def prompt(self) -> str:
        """The request for one value (Paper A, prompts; our shorter number format)."""
        parameters = ", ".join(
            f"{name}={format_number(self.params[name])}"
            for name in FAMILIES[self.family].parameters
        )
        return (
            f"Generate exactly ONE random number from a {self.display_name} distribution with "
            f"parameters {parameters}. Output ONLY the number."
        )

    def output_space(self, decimals: int, max_bins: int) -> OutputSpace:
        """Canonical texts and their probabilities; see `calibration_tuning.output_space`.

        Parameters
        ----------
        decimals : int
            Decimals of a continuous value's text.
        max_bins : int
            Most texts of a continuous distribution; a larger grid is thinned.

        Raises
        ------
        InputError
            If a setting is out of range, or the space would be empty or too large to list.
        """
        if self.is_integer:
            return integer_space(self.functions)
        return continuous_space(self.functions, decimals, max_bins)
