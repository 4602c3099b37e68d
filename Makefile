# Two commands: `make serve` and `make test`. Both set up what they need in .venv and may be repeated.
#   make serve MODEL=path PORT=8001 ARGS="--max-sequences 8"
#   make serve PIP_ARGS="--index-url ..."      (another PyTorch build or package index)
#   make test WORKERS=4 ARGS="tests/service"   (processes that test; a file's tests stay in one of them)
#   make test-full                             (the tests that `make test` leaves out: the rest of its crosses)
#   make test-clients CLIENTS="openai curl"    (real clients, each in an environment of its own in .clients)
#   make test-agents AGENTS="codex aider"      (real agents, each in an environment of its own, without a network)
#   make test-tools                            (benchmarks, and what deploy/ has: manifests, proxies, dashboards)
#   make test-page                             (the page at / in a real browser, Chromium)
#   make test-machines                         (servers on other processors and in odd places: docs/machines.md)
#   make test-arm                              (kernels and servers on an emulated 64-bit ARM processor, in .arm)
#   make test-gpu-simulated                    (servers and kernels on GPUs that are not there, in .gpu-simulated)
#   make test-ray                              (replicas on Ray Serve, in an environment of their own in .ray)
#   make drill ARGS="--hours=1"                (attacks and faults on a live server, ten minutes without ARGS)
MODEL ?=
PORT ?= 8000
ARGS ?=
PIP_ARGS ?=
CLIENTS ?=
AGENTS ?=
WORKERS ?= 2
export PIP_ARGS

INPUTS := pyproject.toml constraints.txt scripts/setup model/kernels/cpu/build.py $(wildcard model/kernels/cpu/*.[ch] model/kernels/cpu/*/*.[ch])

.PHONY: serve test test-full test-tools test-page test-clients test-agents test-machines test-arm test-gpu-simulated test-ray drill check clean

serve: .venv/.ready
	@exec .venv/bin/python -m service serve $(if $(MODEL),"$(MODEL)") --port $(PORT) $(ARGS)

# Tests start a hundred programs, which must find their modules compiled: the variable would keep Python from writing them.
test: .venv/.ready-dev
	PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(ARGS)

test-full: .venv/.ready-dev
	PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n $(WORKERS) --dist loadscope -m full $(ARGS)

test-tools: .venv/.ready-dev
	.venv/bin/python -m pytest -n $(WORKERS) --dist loadscope -m tools tests/benchmarks tests/deploy $(ARGS)

test-page: .venv/.ready-dev
	@scripts/setup-browser
	.venv/bin/python -m pytest -m page tests/page $(ARGS)

test-clients: .venv/.ready-dev
	.venv/bin/python -m tests.clients.run $(CLIENTS)

test-agents: .venv/.ready-dev
	.venv/bin/python -m tests.agents.run $(AGENTS)

test-machines: .venv/.ready-dev
	@scripts/setup-machines
	.venv/bin/python -m pytest -vv --durations=0 -m machines tests/machines $(ARGS)

test-arm:
	@scripts/test-arm $(ARGS)

test-gpu-simulated: .venv/.ready-dev
	@scripts/setup-gpu-simulated
	scripts/on-simulated-gpu -m pytest -n $(WORKERS) --dist loadscope -m simulated tests/gpu/simulated $(ARGS)

test-ray: .ray/.ready
	.ray/bin/python -m pytest -c tests/ray/pytest.ini tests/ray $(ARGS)

drill: .venv/.ready-dev
	.venv/bin/python -m tests.drill $(ARGS)

check: .venv/.ready-dev
	scripts/check

clean:
	rm -rf .venv .clients .ray .arm .gpu-simulated build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.ready: $(INPUTS)
	@scripts/setup
	@touch $@

.venv/.ready-dev: $(INPUTS)
	@scripts/setup dev
	@touch $@ .venv/.ready

.ray/.ready: $(INPUTS) tests/ray/requirements.txt
	@ENVIRONMENT=.ray scripts/setup ray
	.ray/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt $(PIP_ARGS) -r tests/ray/requirements.txt
	@touch $@
