"""Base models and adapters on disk: fetch, load, attach, save.

A fetched model is a folder with safetensors, tokenizer, chat template and generation config.
Its manifest.json, written last, lists the source, the resolved revision and every file's hash;
without it the folder does not count.
"""

import errno
import json
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from calibration_tuning import files, sources
from calibration_tuning.errors import InputError

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

OFFLINE = {"local_files_only": True, "trust_remote_code": False}
TOKENIZER_FILES = (
    *("tokenizer*", "spm.model", "vocab.txt", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
)
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")


def fetch(model: str, settings: dict, folder: Path, downloads: Path) -> None:
    """Bring a base model to a folder and write its manifest.

    Parameters
    ----------
    model : str
        Its name in the registry.
    settings : dict
        source (an address or the addresses of a file's parts), and where known sha256, license,
        license_page and gate_page.
    folder : Path
        Replaced as a whole.
    downloads : Path
        Where packages are kept.

    Raises
    ------
    InputError
        If the source cannot be resolved, verified or read as a model.
    """
    started = time.time()
    with files.lock(folder):
        manifest = folder / "manifest.json"
        if manifest.exists() and manifest.stat().st_mtime > started:
            print("another run has just fetched it", flush=True)
        else:
            _fetch(model, settings, folder, downloads)


def _fetch(model: str, settings: dict, folder: Path, downloads: Path) -> None:
    """`fetch`, while no other run works on the folder."""
    for leftover in folder.parent.glob(f".{folder.name}.partial-*"):
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.partial-"))
    try:
        revision = sources.fetch_files(
            settings["source"],
            settings.get("sha256"),
            downloads,
            partial,
            settings.get("gate_page"),
        )
        if "tokenizer_source" in settings:
            _fetch_tokenizer(settings["tokenizer_source"], downloads, partial)
        for gguf in partial.glob("*.gguf"):
            print(f"converting {gguf.name} to safetensors", flush=True)
            convert_gguf(gguf)
            gguf.unlink()
        _check_model_files(partial, settings["source"])
        manifest = _manifest(model, settings, revision, partial)
        # The temporary folder and safetensors' files are private to their owner.
        partial.chmod(0o755)
        for path in partial.iterdir():
            path.chmod(0o644)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise InputError(f"{folder}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files.write_atomic(folder / "manifest.json", json.dumps(manifest, indent=1) + "\n")


def _fetch_tokenizer(address: str, downloads: Path, folder: Path) -> None:
    """Bring the tokenizer, and nothing else, of another address to a model that has none."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tokenizer-") as scratch:
        sources.fetch_files(address, None, downloads, Path(scratch))
        for pattern in TOKENIZER_FILES:
            for path in Path(scratch).glob(pattern):
                shutil.move(path, folder / path.name)


def _check_model_files(folder: Path, source: str | list[str]) -> None:
    for pattern in ("config.json", "*.safetensors", "tokenizer*"):
        if not list(folder.glob(pattern)):
            raise InputError(f"{source}: expected a model with {pattern}, found none")
    if (folder / "model.safetensors.index.json").exists():
        index = files.read_json(folder / "model.safetensors.index.json")
        missing = {n for n in index["weight_map"].values() if not (folder / n).exists()}
        if missing:
            raise InputError(f"{source}: expected {min(missing)}, which its index lists")


def _manifest(model: str, settings: dict, revision: str, folder: Path) -> dict:
    return {
        "model": model,
        "source": settings["source"],
        "revision": revision,
        "license": settings.get("license"),
        "license_page": settings.get("license_page"),
        "files": {
            str(path.relative_to(folder)): {
                "size": path.stat().st_size,
                "sha256": files.sha256(path),
            }
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    }


def convert_gguf(path: Path) -> None:
    """Convert a GGUF file to float32 safetensors, tokenizer and configuration beside it.

    transformers reads GGUF slowly, so this is done once. It marks the model as quantized, which
    it no longer is, and would refuse to save it.

    Raises
    ------
    InputError
        If transformers cannot read the file.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": path.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
        model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
    except Exception as error:  # readers of four libraries, each with errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path.name}: cannot be read as a GGUF model ({reason})") from None
    _forget_quantization(model)
    try:
        model.save_pretrained(path.parent)
    except SafetensorError as error:  # a full disk comes as one of these
        raise InputError(f"{path.parent}: cannot be written ({error})") from None
    tokenizer.save_pretrained(path.parent)


def check_fetched(folder: Path) -> dict:
    """The manifest of a fetched model, after a look that its files are there and whole in size.

    Raises
    ------
    InputError
        Says how to fetch the model again.
    """
    path = folder / "manifest.json"
    if not path.exists():
        raise InputError(f"{path}: not there, so the model is not whole; {_remedy(folder)}")
    manifest = files.read_json(path)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.exists() or path.stat().st_size != expected["size"]:
            raise InputError(f"{path}: missing or not whole; {_remedy(folder)}")
    return manifest


def _remedy(folder: Path) -> str:
    target = folder / "manifest.json"
    return f"fetch it again: snakemake --forcerun fetch_model -- {target}"


def load_tokenizer(folder: Path):
    """The tokenizer of a fetched model; nothing is asked of the hub and no code of it is run."""
    from transformers import AutoTokenizer

    check_fetched(folder)
    return AutoTokenizer.from_pretrained(folder, **OFFLINE)


def load_model(folder: Path, dtype: str, device: str, quantization: str | None = None):
    """A fetched base model in evaluation mode.

    Parameters
    ----------
    folder : Path
    dtype : str
        float32 or bfloat16.
    device : str
        As torch names it; or "auto", which spreads the model over the job's GPUs, whole layers on
        each (accelerate's device map).
    quantization : str or None
        Of the published weights, which is undone: mxfp4 (gpt-oss), since quantized weights can
        neither be trained around nor compared with the other models.

    Raises
    ------
    InputError
        If the folder is not a whole fetched model, its weights are quantized in another way, its
        files lack a weight of it, or it does not fit on the GPUs that it is spread over.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        Mxfp4Config,
    )

    check_fetched(folder)
    config = AutoConfig.from_pretrained(folder, **OFFLINE)
    # Gemma-3 4B and larger are image-text models.
    loader = AutoModelForImageTextToText if is_image_text(config) else AutoModelForCausalLM
    options = {"dtype": getattr(torch, dtype), "use_safetensors": True} | OFFLINE
    if device == "auto":
        options["device_map"] = "auto"
    if _check_quantization(folder, config, quantization):
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    try:
        model, loading = loader.from_pretrained(folder, output_loading_info=True, **options)
    except SafetensorError as error:
        raise InputError(
            f"{folder}: a weight file is damaged ({error}); {_remedy(folder)}"
        ) from None
    # transformers only warns about weights that are in no file, and leaves them random.
    if loading["missing_keys"]:
        raise InputError(
            f"{folder}: the weight files lack {min(loading['missing_keys'])}; {_remedy(folder)}"
        )
    if device == "auto" and torch.cuda.is_available():
        _check_spread(folder, model.hf_device_map)
    if quantization is not None:
        _forget_quantization(model)
    return (model if device == "auto" else model.to(device)).eval()


def _check_spread(folder: Path, device_map: dict[str, int | str]) -> None:
    """Refuse a model of which accelerate put a part beside the GPUs, which it does in silence."""
    beside = [name for name, device in device_map.items() if device in ("cpu", "disk")]
    if beside:
        raise InputError(
            f"{folder}: the GPUs of this job hold too little memory for {len(beside)} parts of "
            f"the model ({beside[0]}, ...); expected more GPUs (gpu in its registry entry)"
        )


def is_image_text(config) -> bool:
    """Whether a configuration is of an image-text model, which has two towers of projections."""
    return getattr(config, "vision_config", None) is not None


def _check_quantization(folder: Path, config, expected: str | None) -> bool:
    """Whether weights are quantized; refuses a kind that the registry does not name."""
    found = getattr(config, "quantization_config", None)
    method = None if found is None else dict(found).get("quant_method")
    if method != expected or method not in (None, "mxfp4"):
        raise InputError(
            f"{folder / 'config.json'}: the weights' quantization is {method or 'none'}, the "
            f"registry says {expected or 'none'}; expected both the same (none or mxfp4)"
        )
    return method is not None


def _forget_quantization(model) -> None:
    """Remove the marks of weights that are quantized no more; with them a model can't be saved."""
    model.hf_quantizer = None
    model.is_quantized = False
    for owner, mark in ((model, "quantization_method"), (model.config, "quantization_config")):
        if hasattr(owner, mark):
            delattr(owner, mark)


def lora_config(lora: dict, model, scope: str | None = None):
    """PEFT's configuration for a method's LoRA settings.

    Parameters
    ----------
    lora : dict
        rank, alpha, dropout.
    model : base model
        Its attention projections are adapted.
    scope : str or None
        A part of module paths, such as language_model, within which they are. An image-text model
        needs one: its vision tower has projections of the same names.

    Raises
    ------
    InputError
        If there are no such projections, or an image-text model comes without a scope.
    """
    import torch
    from peft import LoraConfig

    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and name.split(".")[-1] in TARGET_MODULES
        and (scope is None or scope in name.split("."))
    ]
    if scope is None and is_image_text(model.config):
        raise InputError(
            f"{model.config.name_or_path}: an image-text model; expected a lora_scope such as "
            "language_model in its registry entry"
        )
    if not names:
        within = f" within {scope}" if scope else ""
        raise InputError(
            f"{model.config.name_or_path}: no {', '.join(TARGET_MODULES)} projections{within} to "
            "adapt"
        )
    # One pattern instead of a list of hundreds: exactly these modules, whatever their layer.
    shapes = sorted({re.sub(r"(?<=\.)\d+(?=\.)", "#", name) for name in names})
    pattern = "|".join(re.escape(shape).replace(r"\#", r"\d+") for shape in shapes)
    return LoraConfig(
        r=lora["rank"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        target_modules=pattern,
        task_type="CAUSAL_LM",
    )


def attach_new_adapter(model, lora: dict, seed: int, scope: str | None = None):
    """A PEFT model with a fresh adapter, drawn from the seed and kept in float32.

    bfloat16 weights would lose the small updates of AdamW, so the adapter of a bfloat16 base
    stays float32. `scope` is that of `lora_config`.
    """
    from peft import get_peft_model
    from transformers import set_seed

    config = lora_config(lora, model, scope)
    set_seed(seed)
    return get_peft_model(model, config, autocast_adapter_dtype=True)


def save_adapter(model, folder: Path, revision: str) -> None:
    """Save an adapter in PEFT's form; the base's revision is recorded in its configuration.

    The same adapter gives the same bytes: the configuration is rewritten with sorted keys and
    the page that PEFT adds, which describes nothing, is left out.

    Parameters
    ----------
    model : PEFT model
    folder : Path
        Replaced as a whole.
    revision : str
        Of the base model, from its manifest. PEFT does not pin the base by itself.
    """
    temporary = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    model.peft_config["default"].revision = revision
    # Embeddings are never trained; PEFT would ask the hub about them.
    model.save_pretrained(temporary, save_embedding_layers=False)
    (temporary / "README.md").unlink(missing_ok=True)
    config = files.read_json(temporary / "adapter_config.json")
    text = json.dumps(config, indent=1, sort_keys=True) + "\n"
    files.write_atomic(temporary / "adapter_config.json", text)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def load_adapter(model, folder: Path, merge: bool):
    """A base model with a saved adapter.

    Parameters
    ----------
    model : base model
    folder : Path
        With adapter_config.json and adapter_model.safetensors.
    merge : bool
        Add the adapter into the base's weights: the same model to rounding, and faster. In
        bfloat16 the rounding would be larger than the adapter's effect, so do not.

    Raises
    ------
    InputError
        If the adapter is missing, damaged or of another base model.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import SafetensorError, safe_open

    weights = folder / "adapter_model.safetensors"
    try:
        files.read_json(folder / "adapter_config.json")
        with safe_open(weights, framework="pt") as adapter:
            saved = set(adapter.keys())
        adapted = PeftModel.from_pretrained(model, folder)
        # PEFT only warns about weights that are not in the file and leaves them untrained.
        expected = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
        if saved != expected:
            raise InputError(f"{len(saved ^ expected)} weights are not those of this base model")
    except (InputError, SafetensorError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{weights}: not a whole adapter of this model ({str(error).splitlines()[0]}); train "
            f"it again: snakemake --forcerun train_adapter -- {weights}"
        ) from None
    return adapted.merge_and_unload() if merge else adapted
