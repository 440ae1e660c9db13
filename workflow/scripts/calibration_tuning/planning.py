"""From configuration to cells: validation, the settings each rule depends on, code hashes.

The Snakefile imports this, so it uses the standard library, jsonschema and PyYAML only.
"""

import ast
import difflib
import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import jsonschema
import yaml

from calibration_tuning.errors import InputError

SPLITS = ("train", "unseen", "heldout")
STAGES = ("all", "prompts", "fetch", "adapters", "samples", "metrics", "tables", "figures", "cells")
"""Targets of the workflow; models and methods are targets too, so they need other names."""
BYTES_PER_TEXT = 2_000
"""Memory of one canonical text in a prefix trie, measured on 16,384 texts with five decimals."""
UNTRAINED_KEYS = ("prompting", "decoding")
"""What a method without training changes about sampling."""
JUDGES = ("partition", "quality")
"""Settings of an evaluation that name a judge."""
ONLY_SCORED = (*JUDGES, "item_parameters")
"""Settings of an evaluation that its samples do not depend on."""
MINI_PREFIX = "retention-mini-"
"""Of the benchmark tasks that are ours, with their items in a package or file."""
RETENTION = ("benchmarks", "perplexity")
"""Evaluations of what a model could do before."""


def load_yaml(path: str | Path) -> dict:
    """Read a YAML mapping.

    Raises
    ------
    InputError
        If the file is missing, is not YAML or is not a mapping.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}: not valid YAML{where}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of keys to values")
    return content


def validate(content: dict, schema: dict, name: str) -> None:
    """Check content against a JSON schema.

    Raises
    ------
    InputError
        One line with the file, the key and what was expected; for an unknown key, what exists.
    """
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(content))
    if errors:
        raise InputError(f"{name}: {_describe(jsonschema.exceptions.best_match(errors))}")


def _describe(error: jsonschema.ValidationError) -> str:
    key = ".".join(str(part) for part in error.absolute_path)
    value, expected = error.instance, error.validator_value
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        unknown = next(k for k in value if k not in known and not _matches_pattern(k, error.schema))
        where = f"{key}.{unknown}" if key else unknown
        return f"unknown key {where}; {_what_exists(str(unknown), known)}"
    if error.validator == "required":
        missing = next(k for k in expected if k not in value)
        return f"{key}.{missing}: this key is required".lstrip(".")
    if error.validator == "type" and isinstance(value, str) and _is_number(value):
        return (
            f"{key}: expected {expected}, got the text '{value}' "
            "(YAML reads a number such as 1e-4 as text; write 1.0e-4)"
        )
    if error.validator == "enum":
        return f"{key}: unknown value {value!r}; {_what_exists(str(value), expected)}"
    if error.validator == "type":
        return f"{key}: expected {expected}, got {value!r}"
    return f"{key}: {error.message}"


def _matches_pattern(key: str, schema: dict) -> bool:
    return any(re.search(pattern, str(key)) for pattern in schema.get("patternProperties", {}))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _what_exists(word: str, known) -> str:
    """'did you mean x?' where one is close, and what exists."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}expected one of: {', '.join(known)}"


def check_exists(value: str, known, what: str) -> None:
    """Refuse a name that is not among the known ones.

    Raises
    ------
    InputError
        Names the value and what exists.
    """
    if value not in known:
        raise InputError(f"{what} {value!r} does not exist; {_what_exists(value, known)}")


def canonical(settings: dict) -> str:
    """Settings as JSON with sorted keys, so that the order of YAML keys never matters."""
    return json.dumps(settings, sort_keys=True)


def multiply(quantity: str, factor: int) -> str:
    """A quantity with its unit, such as 6GB or 2h, several times over."""
    number, unit = re.fullmatch(r"(\d+)(\w+)", quantity).groups()
    return f"{int(number) * factor}{unit}"


def one_of(names) -> str:
    """A wildcard constraint that allows these names only."""
    return "|".join(re.escape(name) for name in names)


@dataclass(frozen=True)
class Plan:
    """A validated configuration: what to run and what each part of it depends on.

    Attributes
    ----------
    models, judges, methods, evaluations : dict
        All entries by name, with their defaults filled in.
    select : dict
        Names of the models, methods and evaluations, and the seeds, that `all` runs.
    exclude : list of dict
        Cells that `all` leaves out: model, method, reason, and seed unless it means all of them.
    families_file : str
        The prompt grids.
    training_speed : dict
        What the comparison of ways to train depends on, with defaults filled into its ways.
    replay : dict
        What untuned models answer, and how, for methods that replay it.
    """

    models: dict[str, dict]
    judges: dict[str, dict]
    methods: dict[str, dict]
    evaluations: dict[str, dict]
    select: dict[str, list]
    exclude: list[dict]
    families_file: str
    training_speed: dict
    replay: dict

    def is_trained(self, method: str) -> bool:
        """Whether a method has an adapter."""
        return self.methods[method]["objective"] != "none"

    def cells(
        self,
        trained_only: bool = False,
        models: list[str] | None = None,
        methods: list[str] | None = None,
    ) -> list[tuple[str, str, int]]:
        """The (model, method, seed) cells that are selected, or of these models or methods."""
        models = self.select["models"] if models is None else models
        methods = self.select["methods"] if methods is None else methods
        methods = [m for m in methods if not trained_only or self.is_trained(m)]
        cells = product(models, methods, self.select["seeds"])
        return [cell for cell in cells if self.exclusion(*cell) is None]

    def evaluations_of(self, method: str) -> list[str]:
        """The selected evaluations that a method takes part in."""
        own = self.methods[method].get("evaluations", self.evaluations)
        return [evaluation for evaluation in self.select["evaluations"] if evaluation in own]

    def decodings(self) -> dict[str, dict]:
        """How each method that only draws in another way does so, by its name."""
        return {
            method: entry["decoding"]
            for method, entry in self.methods.items()
            if "decoding" in entry and "prompting" not in entry
        }

    def selected_decodings(self) -> list[str]:
        """Those of `decodings` that are selected."""
        return [method for method in self.select["methods"] if method in self.decodings()]

    def results(self, evaluations: list[str] | None = None, **selection) -> list[tuple]:
        """The (model, method, seed, evaluation) that are selected; see `cells`."""
        return [
            (model, method, seed, evaluation)
            for model, method, seed in self.cells(**selection)
            for evaluation in self.evaluations_of(method)
            if evaluations is None or evaluation in evaluations
        ]

    def needed_models(self) -> list[str]:
        """The selected models and the judges of the selected evaluations."""
        names = dict.fromkeys(self.select["models"])
        if "novelty" in self.select["evaluations"]:
            names |= dict.fromkeys(self.evaluations["novelty"][role]["judge"] for role in JUDGES)
        return list(names)

    def exclusion(self, model: str, method: str, seed: int) -> str | None:
        """Why a cell is left out, or None."""
        for entry in self.exclude:
            if (entry["model"], entry["method"]) == (model, method) and entry.get(
                "seed", seed
            ) == seed:
                return entry["reason"]
        return None

    def excluded(self) -> list[tuple[str, str, int, str]]:
        """The selected cells that are left out, each with the reason."""
        cells = product(self.select["models"], self.select["methods"], self.select["seeds"])
        return [(*cell, reason) for cell in cells if (reason := self.exclusion(*cell)) is not None]

    def source_settings(self, model: str) -> dict:
        """What the downloaded files of a model or judge depend on."""
        keys = ("source", "tokenizer_source", "sha256", "license", "license_page", "gate_page")
        return self._of_model(model, keys)

    def training_settings(self, model: str, method: str) -> dict:
        """What an adapter depends on, beside prompts, base model and seed."""
        entry = self.models[model]
        own = {key: value for key, value in self.methods[method].items() if key != "evaluations"}
        return (
            own
            | entry.get("training", {})
            | self._loading_settings(model)
            | {"micro_batch": entry["micro_batch"]}
            | self._of_model(model, ("lora_scope", "parallelism"))
        )

    def evaluation_settings(self, model: str, method: str, evaluation: str) -> dict:
        """What an evaluation's samples depend on, beside adapter, base model and seed."""
        entry = self.methods[method]
        settings = self.evaluations[evaluation] | entry.get("evaluations", {}).get(evaluation, {})
        return (
            {key: value for key, value in settings.items() if key not in ONLY_SCORED}
            | {key: entry[key] for key in UNTRAINED_KEYS if key in entry}
            | self._loading_settings(model)
        )

    def data_sets(self) -> dict[str, dict]:
        """What the prompts or texts of each data set depend on, by its name."""
        prompts = {
            entry["name"]: {key: entry[key] for key in ("source", "split") if key in entry}
            for entry in self.evaluations["novelty"]["data"]
        }
        texts = {
            entry["name"]: {key: value for key, value in entry.items() if key != "name"}
            | {"kind": "texts"}
            for entry in self.evaluations["perplexity"]["data"]
        }
        return prompts | texts

    def data_names(self, evaluation: str) -> list[str]:
        """The data sets of an evaluation."""
        return [entry["name"] for entry in self.evaluations[evaluation].get("data", [])]

    def tasks(self) -> dict[str, dict]:
        """What the items of each benchmark task depend on, by its name."""
        return {entry["name"]: entry for entry in self.evaluations["benchmarks"]["tasks"]}

    def replays(self, method: str) -> bool:
        """Whether a method is held close to the untuned model on what that answered."""
        return "replay_coefficient" in self.methods[method]

    def replay_settings(self, model: str) -> dict:
        """What the answers to replay depend on, beside base model, instructions and seed."""
        own = {k: v for k, v in self.replay.items() if k not in ("prompts_file", "seed")}
        return own | self._loading_settings(model)

    def replay_chains(self) -> list[list[str]]:
        """Selected methods that differ in their replay coefficient only, the smallest first."""
        chains: dict[str, list[tuple[float, str]]] = {}
        for method in self.select["methods"]:
            entry = dict(self.methods[method])
            coefficient = entry.pop("replay_coefficient", 0.0)
            if self.is_trained(method):
                chains.setdefault(canonical(entry), []).append((coefficient, method))
        return [[method for _, method in sorted(chain)] for chain in chains.values() if chain[1:]]

    def compared_cells(self, model: str) -> dict[str, list[tuple]]:
        """Of a model, the cells of each evaluation that a trade-off is made of.

        Empty unless the untuned model and a trained method have both sides of it.
        """
        sides = {
            evaluation: [
                cell
                for cell in self.results([evaluation], models=[model])
                if cell[1] == "base" or self.is_trained(cell[1])
            ]
            for evaluation in ("structured", *RETENTION)
        }
        methods = [{cell[1] for cell in cells} for cells in sides.values()]
        both = methods[0] & (methods[1] | methods[2])
        return sides if "base" in both and len(both) > 1 else {}

    def judge_settings(self, evaluation: str, role: str) -> dict:
        """What a judge's verdicts depend on, beside its model and the samples."""
        settings = self.evaluations[evaluation][role]
        return settings | self._loading_settings(settings["judge"])

    def _loading_settings(self, model: str) -> dict:
        """How a model is loaded and spoken to."""
        entry = self.entry(model)
        return {"dtype": entry["dtype"], "chat": entry.get("chat", {})} | self._of_model(
            model, ("quantization",)
        )

    def _of_model(self, model: str, keys: tuple[str, ...]) -> dict:
        """Those of some keys that a model's entry has."""
        entry = self.entry(model)
        return {key: entry[key] for key in keys if key in entry}

    def entry(self, name: str) -> dict:
        """The registry's entry of a model or a judge."""
        return self.models[name] if name in self.models else self.judges[name]

    def speed_settings(self, model: str, way: str) -> dict:
        """What a run of the comparison of ways to train depends on, beside base and prompts."""
        shared = {key: value for key, value in self.training_speed.items() if key != "ways"}
        return (
            shared
            | {"way": self.training_speed["ways"][way]}
            | self._loading_settings(model)
            | self._of_model(model, ("lora_scope",))
        )


def load_plan(config: dict, config_files: list, root: str | Path) -> Plan:
    """Validate the merged configuration and the files it names.

    Parameters
    ----------
    config : the configuration as Snakemake merged it
    config_files : the files it was merged from, for messages
    root : folder of the Snakefile

    Raises
    ------
    InputError
        One line for the first thing that is wrong.
    """
    name = " + ".join(os.path.relpath(path) for path in config_files)
    schemas = Path(root) / "workflow" / "schemas"
    validate(config, load_yaml(schemas / "config.schema.yaml"), name)
    registry = load_yaml(config["models_file"])
    validate(registry, load_yaml(schemas / "models.schema.yaml"), config["models_file"])
    validate(
        load_yaml(config["families_file"]),
        load_yaml(schemas / "families.schema.yaml"),
        config["families_file"],
    )
    models = {slug: registry["defaults"] | entry for slug, entry in registry["models"].items()}
    judges = {
        slug: registry["defaults"] | entry for slug, entry in registry.get("judges", {}).items()
    }
    methods = {
        method: (config["training_defaults"] | entry if entry["objective"] != "none" else entry)
        for method, entry in config["methods"].items()
    }
    for kind, known in (("models", models), ("methods", methods)):
        for value in config["select"][kind]:
            check_exists(value, known, f"{name}: select.{kind}:")
        for entry in config.get("exclude", []):
            check_exists(entry[kind[:-1]], known, f"{name}: exclude: {kind[:-1]}")
    _check_target_names(models, methods, config["models_file"], name)
    for method, entry in methods.items():
        _check_untrained(entry, f"{name}: methods.{method}")
        if entry["objective"] != "none":
            _check_budget(entry, f"{name}: methods.{method}")
    for key in ("max_bins", "divergence_max_bins"):
        _check_bins(config["evaluations"]["structured"], f"{name}: evaluations.structured", key)
    prompts_file = config["evaluations"]["open_ended"]["prompts_file"]
    _check_file(prompts_file, f"{name}: evaluations.open_ended.prompts_file")
    _check_file(config["replay"]["prompts_file"], f"{name}: replay.prompts_file")
    _check_retention(config["evaluations"], name)
    _check_judges(config["evaluations"]["novelty"], models, judges, f"{name}: evaluations.novelty")
    for slug in judges:
        if slug in models:
            raise InputError(f"{config['models_file']}: judges.{slug}: a model has this name too")
    speed = config["training_speed"]
    ways = {way: config["training_defaults"] | entry for way, entry in speed["ways"].items()}
    for way, entry in ways.items():
        _check_way(entry, f"{name}: training_speed.ways.{way}")
    return Plan(
        models,
        judges,
        methods,
        config["evaluations"],
        config["select"],
        config.get("exclude", []),
        config["families_file"],
        speed | {"ways": ways},
        config["replay"],
    )


def check_writable(folders: tuple[str, ...]) -> None:
    """Refuse to start where results could not be written, before anything has run.

    Raises
    ------
    InputError
        Names the first folder that exists and takes no files.
    """
    for folder in folders:
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            raise InputError(
                f"{os.path.abspath(folder)}: cannot be written to; expected a folder of yours on a "
                "file system that is not read-only; nothing already finished is lost"
            )


def _check_target_names(models: dict, methods: dict, models_file: str, name: str) -> None:
    """Refuse a name that two of stages, methods and models have: each is a target by its name."""
    entries = [(slug, f"{models_file}: models.{slug}", {"method": methods}) for slug in models]
    entries += [(method, f"{name}: methods.{method}", {}) for method in methods]
    for entry, where, others in entries:
        for what, taken in (others | {"stage": STAGES}).items():
            if entry in taken:
                raise InputError(
                    f"{where}: this is the name of a {what} too; expected another, since "
                    "`snakemake NAME` builds what is called so"
                )


def _check_untrained(entry: dict, where: str) -> None:
    """Refuse another way of asking or drawing beside training."""
    for key in UNTRAINED_KEYS:
        if key in entry and entry["objective"] != "none":
            raise InputError(f"{where}.{key}: expected objective none, since nothing is trained")
    if "replay_coefficient" in entry and entry["objective"] == "none":
        raise InputError(f"{where}.replay_coefficient: expected an objective that trains")
    if "token_weights" in entry and entry["objective"] != "hard_target":
        raise InputError(f"{where}.token_weights: expected objective hard_target")


def _check_file(path: str, where: str) -> None:
    """Refuse a file that is not there."""
    if not os.path.isfile(path):
        raise InputError(f"{where}: no such file {path}")


def _check_retention(evaluations: dict, name: str) -> None:
    """Refuse windows that do not move on, and names that stand twice."""
    windows = evaluations["perplexity"]
    if windows["stride"] > windows["context"]:
        raise InputError(
            f"{name}: evaluations.perplexity.stride: {windows['stride']} is more than the context "
            f"of {windows['context']} tokens; expected at most that, or tokens are skipped"
        )
    data = [e["name"] for key in ("novelty", "perplexity") for e in evaluations[key]["data"]]
    tasks = [entry["name"] for entry in evaluations["benchmarks"]["tasks"]]
    for key, names in (("data", data), ("benchmarks.tasks", tasks)):
        twice = [entry for entry in names if names.count(entry) > 1]
        if twice:
            raise InputError(f"{name}: evaluations: {key}: two are named {twice[0]}")
    for entry in evaluations["benchmarks"]["tasks"]:
        if entry["name"].startswith(MINI_PREFIX) != ("source" in entry):
            raise InputError(
                f"{name}: evaluations.benchmarks.tasks: {entry['name']}: expected a source with a "
                f"task whose name starts with {MINI_PREFIX}, and none with a task of lm-eval's own"
            )


def _check_judges(settings: dict, models: dict, judges: dict, where: str) -> None:
    """Refuse a judge that is not in the registry, and thresholds that are no scale."""
    for role in JUDGES:
        check_exists(settings[role]["judge"], models | judges, f"{where}.{role}.judge:")
    thresholds = settings["quality"]["thresholds"]
    if sorted(thresholds) != thresholds:
        raise InputError(f"{where}.quality.thresholds: expected ascending numbers")


def _check_budget(settings: dict, where: str) -> None:
    """Refuse a training budget that cannot be met."""
    packing = settings["packing"]
    for key in ("values_per_prompt", "batch"):
        if settings[key] % packing:
            raise InputError(
                f"{where}.{key}: {settings[key]} is not divisible by packing {packing}; expected "
                "a multiple of it, since a visit to a prompt draws that many values"
            )
    _check_bins(settings, where)


def _check_way(settings: dict, where: str) -> None:
    """Refuse a way of training that its step cannot be."""
    if settings["batch"] % settings["packing"]:
        raise InputError(
            f"{where}.batch: {settings['batch']} is not divisible by packing "
            f"{settings['packing']}; expected a multiple of it"
        )
    if not settings["packed"] and settings["packing"] != 1:
        raise InputError(
            f"{where}.packing: got {settings['packing']} with packed false; expected 1, one "
            "completion a sequence"
        )
    _check_bins(settings, where)


def _check_bins(settings: dict, where: str, key: str = "max_bins") -> None:
    """Refuse output spaces that do not fit this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if settings[key] == "full":  # nothing is listed
        return
    needed = settings[key] * BYTES_PER_TEXT
    if needed > memory / 2:
        raise InputError(
            f"{where}.{key}: {settings[key]} texts a prompt need about "
            f"{needed / 2**30:.1f} GiB, more than half of this machine's "
            f"{memory / 2**30:.1f} GiB; expected a smaller max_bins"
        )


def code_hash(script: str | Path) -> str:
    """Hash of a program's code and of all modules of ours that it imports.

    Taken over syntax trees without docstrings, so that comments, docstrings, layout, a touch or
    another checkout change nothing, and every changed statement does.
    """
    script = Path(script)
    seen: dict[Path, str] = {}
    pending = [script]
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen[path], imports = _tree_and_imports(path, path.stat().st_mtime_ns)
        for module in imports:
            file = script.parent.joinpath(*module.split("."))
            candidates = (file.with_suffix(".py"), file / "__init__.py")
            pending += [candidate for candidate in candidates if candidate.exists()]
    trees = sorted((str(path.relative_to(script.parent)), tree) for path, tree in seen.items())
    return hashlib.sha256(repr(trees).encode()).hexdigest()[:16]


@cache
def _tree_and_imports(path: Path, modified: int) -> tuple[str, list[str]]:
    """A file's syntax tree as text, without docstrings, and the modules it may import."""
    tree = ast.parse(path.read_text())
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            node.body = body[1:]
    ours = [module for module in modules if module.split(".")[0] == "calibration_tuning"]
    return ast.dump(tree), ours


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
