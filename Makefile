# Two commands: `make run` goes from nothing to results/report.html, `make test` runs all tests.
# Both make their own environment in .venv; the rest of the pipeline is plain `snakemake`.

PYTHON ?= python3
CORES ?= all
CONFIG ?= config/config.yaml
SNAKEMAKE = PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/snakemake --cores $(CORES) --configfile $(CONFIG)

.PHONY: run test lint clean

run: .venv/run.stamp
	@.venv/bin/python workflow/scripts/clear_stale_lock.py
	$(SNAKEMAKE)

# Three workers on two cores, since one of them mostly waits for Slurm.
test: .venv/test.stamp lint
	PATH="$(CURDIR)/.venv/bin:$$PATH" OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: .venv/test.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/snakefmt --check Snakefile workflow
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/snakemake --lint

.venv/run.stamp: pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --editable .
	touch $@

.venv/test.stamp: pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --editable ".[development]"
	touch $@ .venv/run.stamp

clean:
	rm -rf .venv results resources logs benchmarks .snakemake
