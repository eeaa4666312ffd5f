# Thin on purpose: scripts/setup.sh installs, the CMake presets build, ctest tests.
.DEFAULT_GOAL := build
.PHONY: setup setup-checks setup-browser build program run test check check-ci check-sm61 parity format bench clean
.NOTPARALLEL:

# In CI, warnings are errors.
build_release = cmake --preset release -D HEADROOM_WARNINGS_AS_ERRORS=$(if $(CI),ON,OFF) && cmake --build --preset release

# With CUDA where a GPU and nvcc are, and then in build/cuda.
build: setup
	@scripts/here.sh build

# The program alone, without the tests.
program: setup
	@scripts/here.sh build headroom_program

# Trains a small long-context model inside 512 MiB: about two minutes on two cores. On the GPU where one and nvcc are.
run: program
	@rm -rf build/demo
	@scripts/here.sh train --model demo --data recall --context 16384 --budget 512MiB --steps 150 \
	  --learning-rate 3e-3 --out build/demo

test: setup
	@$(build_release)
	@ctest --preset release

# What CI runs after `make test`: style, room rule, pages in Chromium, sanitized short tests, warnings as errors, CUDA where
# nvcc is, the fuzzers of what reads files.
check-ci: setup-checks setup-browser
	@scripts/check_format.sh
	@scripts/check_rooms.sh
	@ctest --preset release -L browser
	@cmake --preset dev && cmake --build --preset dev && ctest --preset dev-short
	@scripts/check_tidy.sh build/dev
	@if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then cmake --preset ci && cmake --build --preset ci --target test_cuda test_nccl; \
	else echo "check-ci: no nvcc, CUDA left out"; fi
	@cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_config fuzz_safetensors
	@scripts/run_fuzzers.sh build/fuzz 20 fuzz_config fuzz_safetensors

# Everything, however slow: steps of more than a gibibyte, every fault of tests/faults, every test under every sanitizer, pages in Chromium, the fuzzers, every CUDA instance.
check: test check-ci
	@ctest --preset huge
	@cmake --build --preset dev --target long_tests && ctest --preset dev
	@cmake --preset tsan && cmake --build --preset tsan --target all long_tests && ctest --preset tsan
	@cmake --preset fuzz && cmake --build --preset fuzz && scripts/run_fuzzers.sh build/fuzz 60
	@if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then cmake --preset cuda && cmake --build --preset cuda && ctest --preset cuda; \
	else echo "check: no nvcc on PATH, CUDA left out"; fi

# The portable kernels for GPUs that the CUDA of today no longer compiles for; downloads CUDA 12's headers and assembler once.
check-sm61: setup-checks
	@scripts/check_sm61.sh

# Compares with the PyTorch and transformers of PYTHON live: which keys they read and refuse, the parity references made again, and 30 models
# drawn anew (SEED draws those of an earlier run).
PYTHON ?= python3
parity: setup
	@$(build_release) --target test_parity
	@$(PYTHON) tests/parity/list_config_keys.py --check tests/model/transformers_keys.json
	@$(PYTHON) tests/parity/judge_configs.py --check tests/model/odd_configs.json
	@$(PYTHON) tests/parity/make_reference.py --out build/parity
	@$(PYTHON) tests/parity/draw_models.py --out build/parity $(if $(SEED),--seed $(SEED))
	@HEADROOM_PARITY=build/parity build/release/test_parity --gtest_brief=1

bench: setup
	@$(build_release) --target headroom_program headroom_microbench
	@build/release/headroom bench memory --traces 1000
	@build/release/headroom bench attention --seq 1024,4096 --head-dim 64,128 --mask full,causal --impl tiled
	@build/release/headroom bench loss --tokens 4096 --hidden 512 --vocab 32000
	@build/release/headroom bench step --model demo --context 4096,16384
	@build/release/headroom_microbench

format: setup-checks
	@scripts/check_format.sh --fix

setup:
	@scripts/setup.sh build

setup-checks:
	@scripts/setup.sh checks

setup-browser:
	@scripts/setup.sh browser

clean:
	@rm -rf build
