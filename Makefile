# `make sim` runs the simulation, `make test` the tests; both set up .venv on the first call.

PYTHON ?= python3
TORCH ?= cpu
OUT ?= out/demo
HEADLESS ?= 0
SIM_ARGS ?=
VENV := .venv
# Keeps a sourced ROS distribution out of the venv.
RUN := env -u AMENT_PREFIX_PATH -u PYTHONPATH -u LD_LIBRARY_PATH
PYTEST_ARGS ?=
# Two processes, each with its own ROS domain. A module stays in one process, so that its tests share one graph.
PYTEST := $(RUN) $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup setup-bench setup-lerobot sim test test-full faults lint quality bench nano doctor lock error-codes clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## set up .venv (TORCH=cuda for a GPU machine, TORCH=none without torch)
	@$(PYTHON) tools/bootstrap.py --venv $(VENV) --torch $(TORCH)

setup-bench:
	@$(PYTHON) tools/bootstrap.py --venv $(VENV) --torch $(TORCH) --bench

setup-lerobot: ## also install LeRobot in a separate folder, to evaluate its policies
	@$(PYTHON) tools/bootstrap.py --venv $(VENV) --torch $(TORCH) --lerobot

sim: setup ## run the lab with its web page (HEADLESS=1: run the demo, save it in OUT and exit)
	@$(RUN) $(VENV)/bin/kinema4d sim $(if $(filter-out 0,$(HEADLESS)),--headless --out $(OUT)) $(SIM_ARGS)

test: lint ## lint, type-check, and run the tests that every change must pass
	@$(PYTEST) test/unit --quick $(PYTEST_ARGS)
	@$(PYTEST) test/ros test/system test/faults --quick $(PYTEST_ARGS)

test-full: lint ## all tests, with benchmark smoke tests, endurance and short fuzzing
	@$(PYTEST) test/unit $(PYTEST_ARGS)
	@$(PYTEST) test/ros test/system test/faults $(PYTEST_ARGS)

faults: setup ## fault injection: fuzzing, kills, full disks, network failures, load; figures in out/faults
	@$(RUN) $(VENV)/bin/python -m pytest test/faults --full $(PYTEST_ARGS)
	@$(VENV)/bin/python tools/fault_report.py out/faults

lint: setup ## run ruff and mypy
	@$(RUN) $(VENV)/bin/ruff check .
	@$(RUN) $(VENV)/bin/ruff format --check .
	@$(RUN) $(VENV)/bin/mypy

quality: setup ## bandit, dead code, duplicates, layers, secrets, dependency audit (QUALITY_ARGS=--coverage adds coverage)
	@$(RUN) $(VENV)/bin/python tools/quality.py $(QUALITY_ARGS)

bench: setup-bench ## compare with MuJoCo, pyrender, Open3D and plain rclpy
	@$(RUN) $(VENV)/bin/python bench/kinematics.py
	@$(RUN) $(VENV)/bin/python bench/render.py
	@$(RUN) $(VENV)/bin/python bench/ros.py
	@$(RUN) $(VENV)/bin/python bench/nano.py
	@$(RUN) $(VENV)/bin/python bench/draft.py

nano: setup ## rebuild the nano model: episodes, training, figures; resumes an interrupted run (hours)
	@$(RUN) $(VENV)/bin/kinema4d data make --config nano --out runs/data/nano --episodes 6000 --val 300 --ood 200 --workers 2
	@$(RUN) OMP_NUM_THREADS=2 $(VENV)/bin/kinema4d train --config nano --out runs/nano --resume
	@$(RUN) $(VENV)/bin/kinema4d assess --data runs/data/nano --split train --leak
	@$(RUN) $(VENV)/bin/kinema4d assess --data runs/data/nano --split val --twins 40 --checkpoint runs/nano/model --out out/nano

doctor: setup ## check the installation
	@$(RUN) $(VENV)/bin/kinema4d doctor

lock: setup ## resolve requirements/*.in again
	@$(VENV)/bin/python -m pip install --quiet uv
	@cd requirements && ../$(VENV)/bin/python -m uv pip compile --quiet --upgrade --universal --python-version 3.10 \
	  --generate-hashes --no-header --no-annotate runtime.in ros.in build.in test.in -o lock.txt
	@cd requirements && ../$(VENV)/bin/python -m uv pip compile --quiet --upgrade --universal --python-version 3.10 \
	  --generate-hashes --no-header --no-annotate -c lock.txt --override model-overrides.txt model.in -o model-lock.txt
	@cd requirements && ../$(VENV)/bin/python -m uv pip compile --quiet --upgrade --universal --python-version 3.10 \
	  --generate-hashes --no-header --no-annotate -c lock.txt -c model-lock.txt --override overrides.txt bench.in -o bench-lock.txt

error-codes: setup ## write kinema4d_msgs/msg/ErrorCode.msg from kinema4d_ros/core/errors.py
	@$(VENV)/bin/python tools/sync_error_codes.py

clean: ## remove .venv and all generated files
	rm -rf $(VENV) build install log out .pytest_cache .mypy_cache .ruff_cache .hypothesis
