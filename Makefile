# Each target is one command; `make demo` and `make test` need python3 ≥ 3.11 and nothing else.
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
export VENV CONSTRAINTS

.PHONY: demo test check bench

# Run the main job on the example: eval run, look, grade again without the model.
demo: $(VENV)/.demo
	@scripts/demo

# Install what the checks need, where that is not done, and run them all.
test: $(VENV)/.dev
	@scripts/check

# Run the checks in an environment that is installed already.
check:
	@scripts/check

# Measure this package and its peers in one run.
bench: $(VENV)/.dev
	@scripts/bench

$(VENV)/.demo $(VENV)/.dev: pyproject.toml $(CONSTRAINTS) scripts/install
	@scripts/install $(patsubst .%,%,$(@F))
