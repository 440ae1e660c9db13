"""The branching sampler is distributed as n separate samples."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, chi2_contingency
from transformers import GenerationConfig, set_seed

from calibration_tuning import sampling
from calibration_tuning.sampling import sample_completions, sample_prompts, split_counts
from tiny_models import ARCHITECTURES, build_model, build_tokenizer

STOP = 3


def sharpened(architecture):
    """A tiny model with few likely tokens, so that exact probabilities can be compared."""
    model = build_model(architecture)
    keep = torch.tensor([STOP, 20, 21, 22])
    bias = torch.full((model.config.vocab_size,), -1e4)
    bias[keep] = 0.0
    model.get_output_embeddings().register_forward_hook(lambda m, i, output: output + bias)
    return model, build_tokenizer(architecture)


@torch.inference_mode()
def exact_probabilities(model, prompt, depth):
    """Every completion of at most `depth` tokens with its probability, by plain forward passes."""
    complete, live = {}, {(): 1.0}
    for step in range(depth):
        extended = {}
        for prefix, mass in live.items():
            p = model(torch.tensor([prompt + list(prefix)])).logits[0, -1].double().softmax(-1)
            for token in p.nonzero().ravel().tolist():
                ended = token == STOP or step + 1 == depth
                (complete if ended else extended)[(*prefix, token)] = mass * float(p[token])
        live = extended
    return complete


def assert_follows(samples, exact):
    """A chi-square test of samples against the exact probability of every completion."""
    counts = Counter(sample.token_ids for sample in samples)
    assert set(counts) <= set(exact)
    expected = np.array([len(samples) * p for p in exact.values()])
    observed = np.array([counts[path] for path in exact])
    large = expected >= 5
    statistic = ((observed - expected)[large] ** 2 / expected[large]).sum()
    assert chi2.sf(statistic, large.sum() - 1) > 1e-4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("max_rows", "max_nodes"), [(256, 2048), (2, 2048), (256, 4), (3, 1)])
def test_samples_follow_the_exact_probabilities(architecture, max_rows, max_nodes, monkeypatch):
    """As one tree, with branches that wait, as rows of a batch, and all of it."""
    monkeypatch.setattr(sampling, "MAX_TREE_NODES", max_nodes)
    model, tokenizer = sharpened(architecture)
    prompt = list(range(30, 42))  # longer than the sliding window
    samples = sample_completions(
        model, tokenizer, prompt, 4000, stop_ids={STOP}, max_new_tokens=4, max_rows=max_rows, seed=1
    )
    assert len(samples) == 4000
    assert_follows(samples, exact_probabilities(model, prompt, 4))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("max_nodes", [2048, 30])
def test_prompts_that_run_together_keep_their_own_distributions(
    architecture, max_nodes, monkeypatch
):
    monkeypatch.setattr(sampling, "MAX_TREE_NODES", max_nodes)
    model, tokenizer = sharpened(architecture)
    prompts = [list(range(30, 42)), [30, 31, 50], [30, 31, 32, 60, 61, 62, 63], [30, 31, 50]]
    results = sample_prompts(
        model, tokenizer, prompts, 1500, stop_ids={STOP}, max_new_tokens=3, max_rows=5000, seed=3
    )
    for prompt, samples in zip(prompts, results, strict=True):
        assert_follows(samples, exact_probabilities(model, prompt, 3))


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    st.integers(1, 50),
    st.integers(1, 100),
)
def test_prompts_are_grouped_once_each_and_within_bounds(lengths, n, max_rows):
    groups = sampling.group_prompts(lengths, n, max_rows)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * n <= max_rows
        assert len(group) == 1 or sum(lengths[i] for i in group) <= sampling.MAX_TREE_NODES


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 2},
        {"top_p": 0.7},
        {"temperature": 1.5, "min_p": 0.45},
        {"temperature": 0.8, "top_k": 3, "top_p": 0.9, "min_p": 0.1},
    ],
)
def test_decoding_options_are_those_of_generate(options):
    model, tokenizer = sharpened("llama")
    prompt, n = list(range(30, 38)), 4000
    ours = Counter(
        s.token_ids
        for s in sample_completions(
            model, tokenizer, prompt, n, stop_ids={STOP}, max_new_tokens=2, **options
        )
    )
    set_seed(0)
    filters = {"temperature": 1.0, "top_p": 1.0, "top_k": 0} | options
    settings = GenerationConfig(
        do_sample=True, max_new_tokens=2, num_return_sequences=n, eos_token_id=STOP,
        pad_token_id=0, **filters,
    )  # fmt: skip
    rows = model.generate(torch.tensor([prompt]), generation_config=settings)[:, len(prompt) :]
    theirs = Counter(tuple(t for t in row if t != 0) for row in rows.tolist())
    paths = [path for path in set(ours) | set(theirs) if ours[path] + theirs[path] >= 10]
    table = np.array([[ours[path] for path in paths], [theirs[path] for path in paths]])
    assert set(ours) <= set(theirs) or sum(ours[p] for p in set(ours) - set(theirs)) < 10
    assert chi2_contingency(table).pvalue > 1e-4


def test_a_stop_string_ends_a_completion_and_stays_in_it():
    model, tokenizer = sharpened("qwen3")
    stop = tokenizer.decode([20, 21])
    samples = sample_completions(
        model, tokenizer, [30, 31], 500, stop_ids={STOP}, max_new_tokens=6, stop_strings=(stop,)
    )
    assert any(stop in sample.text for sample in samples)
    for sample in samples:
        assert stop not in tokenizer.decode(sample.token_ids[:-1])
        ended = stop in sample.text or sample.token_ids[-1] == STOP
        assert sample.finished == ended
        assert ended or len(sample.token_ids) == 6


def test_a_special_token_may_be_a_stop_string():
    """It is no part of the sample's text, but the completion has finished."""
    model, tokenizer = sharpened("qwen3")
    stop = tokenizer.decode([STOP])
    samples = sample_completions(
        model, tokenizer, [30, 31], 200, stop_ids={4}, max_new_tokens=3, stop_strings=(stop,)
    )
    assert any(STOP in sample.token_ids for sample in samples)
    assert all(sample.finished == (STOP in sample.token_ids) for sample in samples)
    assert not any(stop in sample.text for sample in samples)


def test_progress_counts_every_sample():
    model, tokenizer = sharpened("qwen3")
    told = []
    sample_prompts(
        model, tokenizer, [[30], [31, 32]], 50, stop_ids={STOP}, max_rows=7, progress=told.append
    )
    assert sum(told) == 100


def test_samples_agree_with_generate():
    model, tokenizer = sharpened("qwen3")
    prompt = list(range(30, 38))
    n = 3000
    ours = Counter(
        s.token_ids
        for s in sample_completions(model, tokenizer, prompt, n, stop_ids={STOP}, max_new_tokens=3)
    )
    set_seed(0)
    settings = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=3,
        num_return_sequences=n, eos_token_id=STOP, pad_token_id=0,
    )  # fmt: skip
    rows = model.generate(torch.tensor([prompt]), generation_config=settings)[:, len(prompt) :]
    theirs = Counter(tuple(t for t in row if t != 0) for row in rows.tolist())
    paths = [path for path in set(ours) | set(theirs) if ours[path] + theirs[path] >= 10]
    table = np.array([[ours[path] for path in paths], [theirs[path] for path in paths]])
    assert chi2_contingency(table).pvalue > 1e-4


def test_the_seed_decides_and_the_rows_bound_the_batch():
    model, tokenizer = sharpened("llama")
    sizes = []
    model.register_forward_hook(
        lambda m, args, output: sizes.append(output.logits.shape[0] * output.logits.shape[1])
    )
    arguments = {"stop_ids": {STOP}, "max_new_tokens": 5, "max_rows": 7}
    first = sample_completions(model, tokenizer, [30, 31], 300, seed=5, **arguments)
    assert max(sizes) == 7
    assert first == sample_completions(model, tokenizer, [30, 31], 300, seed=5, **arguments)
    assert first != sample_completions(model, tokenizer, [30, 31], 300, seed=6, **arguments)


def test_a_text_that_is_not_viable_is_cut():
    model, tokenizer = sharpened("llama")
    samples = sample_completions(
        model, tokenizer, [30, 31], 200, stop_ids={STOP}, max_new_tokens=5,
        viable=lambda text: len(text) < 2,
    )  # fmt: skip
    assert {len(s.text) for s in samples} == {0, 1, 2}
    assert all(len(s.text) == 2 for s in samples if not s.finished)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 1000), min_size=1, max_size=4))
def test_counts_are_kept_and_impossible_tokens_never_drawn(seed, counts):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(9, 0.1), len(counts)).astype(np.float32)
    probabilities[:, ::3] = 0.0
    probabilities[:, 1] += 1e-3
    parents, tokens, children = split_counts(torch.from_numpy(probabilities), np.array(counts), rng)
    assert np.bincount(parents, children).tolist() == counts
    assert (children > 0).all()
    assert not np.isin(tokens, [0, 3, 6]).any()
