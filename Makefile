# make demo    sets up, starts a control plane, deploys the built-in model, asks it a question
# make test    sets up, runs the default tests
# make help    lists all targets

SHELL  := /bin/bash
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The demo has a directory of its own, so that it neither finds nor leaves anything in yours.
DEMO_STATE_DIR := $(or $(EXO_DEMO_STATE_DIR),$(or $(XDG_STATE_HOME),$(HOME)/.local/state)/exo-inference-demo)
# Processes that share the default tests: two more than cores, as nearly half of the time of each is waiting
# for servers, and no more than four, as many start some.
WORKERS ?= $(shell n=$$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2); echo $$((n < 3 ? n + 2 : 4)))
# A module stays in one process, so that its servers are started once; modules keep the order that was drawn.
BY_MODULE := --dist loadfile --no-loadscope-reorder
PARALLEL  := -n $(WORKERS) $(BY_MODULE)
IN_PROCESSES := $(if $(PROCESSES),-n $(PROCESSES) $(BY_MODULE))
# What a tier spends its time on stands at the end of what it prints.
SLOWEST := --durations 20 --durations-min 10
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := env OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(if $(SEED),--random-order --random-order-seed=$(SEED))
# Only files whose SHA-256 is in requirements/; then this repository, built with what is installed. pip would
# compile all of it on one core: all cores do, but what few programs import of it, which Python does when one does.
LOCKED   := $(PIP) install --require-hashes --no-deps --no-compile
COMPILED := $(BIN)/python -m compileall -qq -j 0 -x '/(tests|transformers/models)/' $(VENV)/lib
EDITABLE := $(PIP) install --no-deps --no-build-isolation

# Without compiled files every process of the tests, some hundreds, would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo down test test-repeat test-orders test-slow test-equivalence test-paths test-triton test-triton-all test-clients test-hard-use test-chaos test-kubernetes test-images test-upgrade test-kills kubernetes-binaries images lint planner-calibrate format docs bench bench-cpu bench-cpu-peers bench-kubernetes gpu-check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: Python 3.11 or newer is needed; name one with PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "error: cannot create $(VENV); on Debian and Ubuntu install python3-venv" >&2; exit 1; }

ENGINE := engine-images/exo-engine
# What the engine's own build reads: its kernels are compiled when it is installed.
ENGINE_BUILD := $(addprefix $(ENGINE)/,pyproject.toml hatch_build.py) $(wildcard $(ENGINE)/src/exo_engine/kernels/csrc/*)

# A stamp per set of extras, so that nothing is installed twice and an edit of pyproject.toml is noticed.
$(VENV)/.installed: $(BIN)/python pyproject.toml $(ENGINE_BUILD) $(wildcard requirements/*.txt)
	@echo "Installing exo-inference, its server and its engine into $(VENV) (PyTorch is large: a few minutes, once) ..."
	@$(LOCKED) $(foreach set,build server engine torch,-r requirements/$(set).txt)
	@$(COMPILED) || true
	@$(EDITABLE) -e engine-images/exo-engine -e '.[server]'
	@touch $@

# Both distributions are there already: to install them again would compile the engine's kernels again.
$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the test tools into $(VENV) ..."
	@$(LOCKED) $(foreach set,kubernetes dev,-r requirements/$(set).txt)
	@$(COMPILED) || true
	@touch $@

setup: $(VENV)/.installed ## create .venv with everything that `exo dedicated-inference up` needs
setup-dev: $(VENV)/.installed-dev ## the same with the test tools

demo: setup ## a private endpoint on this machine, from nothing to a streamed answer
	@PATH="$(abspath $(BIN)):$$PATH" EXO_DEMO_STATE_DIR="$(DEMO_STATE_DIR)" scripts/demo

down: setup ## stop what `make demo` started, and delete it
	@$(BIN)/exo dedicated-inference down --state-dir "$(DEMO_STATE_DIR)" --purge --force

# Modules in another order each time, and the tests in each; SEED=N, which every run prints, repeats one. Each
# of the WORKERS takes the next module when it is free, so that only WORKERS=0 repeats who comes after whom.
test: setup-dev ## the default tests: offline, no GPU, under five minutes; SEED=N repeats an order
	@$(PYTEST) --random-order $(PARALLEL)

test-repeat: setup-dev ## the tests of TIER=slow, equivalence, chaos or kubernetes, or the default ones, TIMES=5 times beside LOAD=0 busy cores
	@$(BIN)/python -m scripts.repeat_tests --times $(or $(TIMES),5) --load $(or $(LOAD),0) \
	  -- $(MAKE) --no-print-directory test$(if $(TIER),-$(TIER))

# Hours: before a release.
test-orders: setup-dev ## default tests five times, other tiers twice, each on a quiet machine and beside two busy cores
	@failed=; for load in 0 2; do for tier in '' slow equivalence chaos kubernetes; do \
	  $(MAKE) --no-print-directory test-repeat TIER=$$tier LOAD=$$load TIMES=$$([ "$$tier" ] && echo 2 || echo 5) \
	    || failed="$$failed $${tier:-default}:LOAD=$$load"; \
	done; done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

# With PROCESSES=3 there is one that computes while others wait for the engines of whole control planes.
test-slow: setup-dev ## tests that take longer: full training check, rolling updates under load
	@$(PYTEST) -m 'slow and not kubernetes' --timeout 600 $(SLOWEST) $(IN_PROCESSES)

test-equivalence: setup-dev ## the engine in every combination of its settings, token for token
	@$(PYTEST) -m equivalence --timeout 600 $(IN_PROCESSES) engine-images/exo-engine/tests

# `off` switches the CPU kernels off; `none` is a copy of the engine without them, as it is built where there is no compiler.
# Where kernels have AVX2 at most, PyTorch has, too. Left out is what no path can change: GPU kernels, and every case of
# test-equivalence, which is in float32, so that kernels choose its tokens and compute nothing else; a pair of each setting is in.
# Those that somebody names have to be there.
CPU_PATHS_ARE_NAMED := $(CPU_PATHS)
CPU_PATHS ?= none off plain avx2 avx2_vnni avx512 avx512_vnni avx512_bf16 amx
WITHOUT_KERNELS := $(VENV)/without-kernels
# -u CI: with it a test fails that cannot be made here, as those of kernels cannot.
SETTINGS_none := -u CI PYTHONPATH=$(abspath $(WITHOUT_KERNELS))
SETTINGS_plain := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2
SETTINGS_avx2 := $(SETTINGS_plain)
SETTINGS_avx2_vnni := $(SETTINGS_plain)
PATHS_TESTS := $(addprefix $(ENGINE)/tests/,attention core equivalence kernels layers models sampling weight_formats \
  server/pooling test_llm.py test_machine.py test_openmp.py) \
  $(addprefix --ignore-glob=,*triton* *_graphs.py *_fixed_sums.py *_paged_flash.py *_prompt_choice.py)

define test_path
echo "==== $(1)"; \
case " none off $$there " in \
  *" $(1) "*) env $(SETTINGS_$(1)) EXO_ENGINE_CPU_KERNELS=$(subst none,auto,$(1)) \
    $(PYTEST) $(if $(QUICK),,-m 'not equivalence') --timeout 600 $(IN_PROCESSES) $(PATHS_TESTS) || failed="$$failed $(1)";; \
  *) echo "this machine or build has no such kernels"; [ -z "$(CPU_PATHS_ARE_NAMED)" ] || failed="$$failed $(1)";; \
esac;
endef

test-paths: setup-dev ## the engine's tests on each of CPU_PATHS="none off plain avx2 ..." that is here; QUICK=1 without slow ones
	@rm -rf $(WITHOUT_KERNELS) && mkdir $(WITHOUT_KERNELS) && cp -r $(ENGINE)/src/exo_engine $(WITHOUT_KERNELS) \
	  && rm -f $(WITHOUT_KERNELS)/exo_engine/kernels/*.so
	@there=$$($(BIN)/python -c 'from exo_engine.kernels.library import available_paths; print(*available_paths())') || exit 1; \
	PYTHONPATH=$(abspath $(WITHOUT_KERNELS)) $(BIN)/python -c 'from exo_engine.kernels.library import available_paths; assert not available_paths()' || exit 1; \
	failed=; $(foreach path,$(CPU_PATHS),$(call test_path,$(path))) [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

OF_TRITON := engine-images/exo-engine/tests/kernels/triton
# Its interpreter makes numbers of arrays with one, which NumPy 2.4 refuses: in $(OF_TRITON)/triton-3.6.0.txt is what
# uv pip compile --no-deps --universal --python-version 3.11 --generate-hashes gives for triton==3.6.0 and numpy<2.4.
TRITON_TESTS := $(addprefix engine-images/exo-engine/tests/,attention/test_triton.py attention/test_triton_latent.py kernels/triton kernels/test_compiled_ahead.py core/test_triton_engine.py)
OTHER_TRITON := $(VENV)/triton-3.6.0

$(OTHER_TRITON)/numpy: | setup-dev
	@$(LOCKED) --upgrade --target $(OTHER_TRITON) -r $(OF_TRITON)/triton-3.6.0.txt

# The GPU machines have another release than PyTorch brings here. PROCESSES=2 computes in two.
OF_GPU_KERNELS := gpu_kernels and not slow and not equivalence and not every_launch
test-triton: setup-dev $(OTHER_TRITON)/numpy ## GPU kernels, interpreted with both releases of Triton, and compiled for all GPUs with 3.6.0
	@$(PYTEST) -m '$(OF_GPU_KERNELS)' $(IN_PROCESSES) $(ENGINE)/tests
	@PYTHONPATH=$(abspath $(OTHER_TRITON)) $(PYTEST) -m 'both_releases or $(OF_GPU_KERNELS)' $(IN_PROCESSES) $(TRITON_TESTS) \
	  -W "ignore:Conversion of an array with ndim:DeprecationWarning"
	@OTHER_TRITON=$(abspath $(OTHER_TRITON)) $(PYTEST) -m slow --timeout 600 $(if $(PROCESSES),-n $(PROCESSES)) $(OF_TRITON)/test_compile.py

test-triton-all: setup-dev $(OTHER_TRITON)/numpy ## GPU kernels compiled in every combination of settings, with both releases of Triton
	@for other in '' $(abspath $(OTHER_TRITON)); do OTHER_TRITON=$$other $(PYTEST) -m every_launch --timeout 600 \
	  $(if $(PROCESSES),-n $(PROCESSES)) $(OF_TRITON)/test_compile.py || exit 1; done

# Programs that others wrote, each set in an environment of its own, which is made once and needs the network
# then: make test-clients CLIENTS="packages aiperf"; vllm is large, and takes the CUDA libraries that PyTorch loads
# from $(VENV). After a change of NAME.in in tests/clients/requirements, there:
# uv pip compile --generate-hashes --no-header --no-annotate --output-file NAME.txt NAME.in
test-clients: setup-dev $(addprefix $(VENV)/clients/,$(addsuffix /.installed,$(CLIENTS))) ## others' clients and load generators against gateway and engine; vLLM and openai-harmony as oracles
	@CLIENT_ENVIRONMENTS=$(abspath $(VENV)/clients) $(PYTEST) -m clients --timeout 900 tests/clients \
	  $(ENGINE)/tests/server/answer_parsing/test_vllm_oracle.py \
	  $(ENGINE)/tests/server/answer_parsing/test_harmony_oracle.py \
	  -k "$(subst $(eval) , or ,$(strip $(CLIENTS)))"

CLIENTS ?= packages openapi aiperf guidellm vllm harmony

$(VENV)/clients/%/.installed: tests/clients/requirements/%.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes --no-deps -r $<
	@[ $* != vllm ] || (cd $(VENV)/lib/python3*/site-packages && pwd) > "$$(echo $(@D)/lib/python3*/site-packages)/project.pth"
	@touch $@

test-hard-use: setup-dev ## 10,000 requests at 64 at once, some given up, some broken: nothing is left behind
	@HARD_USE_REQUESTS=10000 $(PYTEST) -m hard_use -s tests/e2e/test_hard_use.py

# What a test printed, its seed above all, stands at the end where PROCESSES=2 run at once.
test-chaos: setup-dev ## kill -9 at random moments under load, 50 times
	@$(PYTEST) -m chaos --timeout 900 $(if $(PROCESSES),-rP $(IN_PROCESSES),-s)

# With PROCESSES=2 one has all tests of the one cluster, and both take those of an API server, of which each has its
# own: tests wait for daemons half of the time. LAST_FAILED=1 runs again only what failed the last time.
test-kubernetes: setup-dev ## everything on a real Kubernetes, built once from Go modules; as root (10 minutes more, once)
	@$(BIN)/python -m scripts.kubernetes.cluster --image exo-inference --image exo-engine -- \
	  $(subst $(BIN),$(abspath $(BIN)),$(PYTEST)) -m 'kubernetes and not slow and not upgrade' --timeout 600 \
	  $(SLOWEST) $(IN_PROCESSES) $(if $(LAST_FAILED),--last-failed --last-failed-no-failures none)

# A cluster has no network but its own, so this one is beside it.
test-images: setup-dev ## the image for GPUs, really built and run without one; as root
	@$(PYTEST) -m container_images tests/images

# Both take too long for every change: before a release.
test-upgrade: setup-dev ## from the images of commit FROM=c733aad to these under requests; as root, from a clone with its history
	@OMP_NUM_THREADS=1 $(BIN)/python -m scripts.kubernetes.cluster --image exo-inference --image exo-engine \
	  --former $(or $(FROM),c733aad) -- $(abspath $(BIN))/python -m pytest -m upgrade -s

test-kills: setup-dev ## 1,000 kills within each verb that deletes or replaces, on a real Kubernetes API
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'kubernetes and slow'

kubernetes-binaries: ## build the Kubernetes programs that are not on this machine (10 minutes, once)
	@$(PYTHON) -m scripts.kubernetes.binaries

images: ## build all images, or IMAGES="NAME..."; OFFLINE=1 builds those that need no container registry
	@$(PYTHON) -m scripts.kubernetes.images $(if $(OFFLINE),--offline) $(IMAGES)

lint: setup-dev ## ruff, mypy --strict, import contracts, locked requirements, generated docs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m mypy
	@cd engine-images/exo-engine && $(abspath $(BIN))/python -m mypy --config-file ../../pyproject.toml -p exo_engine
	@$(BIN)/lint-imports
	@$(BIN)/python -m scripts.lock_requirements --check
	@$(BIN)/python scripts/generate_sync.py --check
	@$(BIN)/python scripts/generate_crds.py --check
	@$(BIN)/python -m scripts.generate_chart_pages --check
	@$(BIN)/python -m scripts.draw_packages --check
	@$(BIN)/python -m scripts.draw_engine_fields --check
	@$(BIN)/python -m scripts.generate_cli_reference --check
	@$(BIN)/python -m scripts.calibrate_planner --starts $(STARTS) --check
	@$(BIN)/python -m scripts.static_starts.calibrate --starts $(STATIC_STARTS) --check
	@$(BIN)/python -m scripts.llama_cpp_starts.calibrate --starts $(LLAMA_CPP_STARTS) --check

STARTS := docs/benchmarks/planner-starts.json
STATIC_STARTS := docs/benchmarks/planner-sglang-starts.json
LLAMA_CPP_STARTS := docs/benchmarks/planner-llama-cpp-starts.json
SPEEDS := docs/benchmarks/planner-published-speeds.json

planner-calibrate: setup-dev ## set the planner's measured constants on one half of real starts; grade it on the other
	@$(BIN)/python -m scripts.calibrate_planner --starts $(STARTS)
	@$(BIN)/python -m scripts.static_starts.calibrate --starts $(STATIC_STARTS)
	@$(BIN)/python -m scripts.static_starts.grade --cases $(STATIC_STARTS) --explanations docs/benchmarks/planner-explanations.json \
	  --write docs/benchmarks/planner-sglang.md
	@$(BIN)/python -m scripts.calibrate_speeds --figures $(SPEEDS) --write docs/benchmarks/planner-published-speeds.md
	@$(BIN)/python -m scripts.calibrate_processor --figures docs/benchmarks/cpu.json --held docs/benchmarks/cpu-avx2.json \
	  --zen4 docs/benchmarks/cpu-zen4.json --write docs/benchmarks/planner-processor.md
	@$(BIN)/python -m scripts.grade_planner --cases $(STARTS) --unseen docs/benchmarks/planner-unseen.json --ran $(SPEEDS) \
	  --explanations docs/benchmarks/planner-explanations.json --write docs/benchmarks/planner.md
	@$(BIN)/python -m scripts.llama_cpp_starts.calibrate --starts $(LLAMA_CPP_STARTS)
	@$(BIN)/python -m scripts.llama_cpp_starts.grade --cases $(LLAMA_CPP_STARTS) --explanations docs/benchmarks/planner-explanations.json \
	  --write docs/benchmarks/planner-llama-cpp.md

format: setup-dev ## rewrite what ruff can mend
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: setup-dev ## regenerate the generated pages of docs/reference
	@$(BIN)/python scripts/generate_sync.py
	@$(BIN)/python scripts/generate_sdk_reference.py
	@$(BIN)/python -m scripts.generate_chart_pages
	@$(BIN)/python -m scripts.draw_packages
	@$(BIN)/python -m scripts.draw_engine_fields
	@$(BIN)/python -m scripts.generate_cli_reference --write

bench: setup-dev ## the benchmarks that run on this machine, one after the other
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench-kubernetes: setup-dev ## 1,000 deployments on 500 simulated nodes (12 minutes); needs `make kubernetes-binaries`
	@$(BIN)/python -m benchmarks.kubernetes_scale

# A peer that cannot be installed is left out by name. ARGS="--models s --peers exo-engine,llama.cpp" measures less.
bench-cpu: setup-dev ## exo-engine beside llama.cpp, vLLM and transformers on a quiet CPU (hours); ARGS=--quick tests it
	@$(MAKE) --no-print-directory --keep-going bench-cpu-peers || true
	@$(BIN)/python -m benchmarks.cpu $(or $(ARGS),--write)

bench-cpu-peers: setup-dev $(VENV)/clients/vllm/.installed ## build llama.cpp and install vLLM for `make bench-cpu` (30 minutes, once)
	@$(BIN)/python -m benchmarks.cpu.llama_cpp

gpu-check: ## prove the engine on CUDA and measure it (10 minutes at most); figures in OUTPUT=gpu-check.json
	@PYTHONPATH=engine-images/exo-engine/src$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON) \
	  engine-images/exo-engine/benchmarks/gpu_check.py $(if $(OUTPUT),--output $(OUTPUT)) $(ARGS)

clean: ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
