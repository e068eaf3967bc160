# Tests, benchmarks, fuzzers and checks of the sources; included by the Makefile.

# ---- tests ----------------------------------------------------------------------------------
# One program has all of tests/unit: `build/tests/check test_mask` runs a file. The sources of tests
# are compiled for the build's speed, without sanitizers; the library that they test has them.

CHECK     := $(BUILD)/tests/check
UNITS     := $(wildcard tests/unit/test_*.c)
CHECK_OBJ := $(patsubst %.c,$(BUILD:-san=)/%.o,$(UNITS) $(filter-out %/execpeer.c,$(wildcard tests/harness/*.c)))
# Plain C that only the GPU's programs link, but that needs no GPU to be tested.
HOST_OBJ  := $(addprefix $(BUILD)/cuda/,operands.o attn/plan.o)
TEST_OPT  := -O0 -g1
TEST_FLAGS = $(CFLAGS) $(TEST_OPT) $(DIALECT) $(filter -fsanitize=thread,$(FLAGS))

$(TESTS)/%.o: tests/%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(DEFINES) $(CPPFLAGS) $(TEST_FLAGS) -MMD -MP -c -o $@ $<
# These compute: references, benchmarks, mutations.
$(addprefix $(TESTS)/,harness/%.o gpu/%.o bench/%.o fuzz/%.o): TEST_OPT := -O2 -g1
$(addprefix $(TESTS)/unit/,test_exec.o test_decodephase.o): DEFINES += -DEXEC_PEER='"$(TESTS)/harness/execpeer"'

$(TESTS)/harness/execpeer: $(TESTS)/harness/execpeer.o
	$(call say,LINK,$@)
	$(Q)$(CC) $(DIALECT) $(LDFLAGS) -o $@ $^

$(CHECK): $(CHECK_OBJ) $(HOST_OBJ) $(LIB) | $(TESTS)/harness/execpeer
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(LINK) $(if $(shell command -v ld.gold),-fuse-ld=gold) $^ $(LIBS) $(LDLIBS) -lcheck_pic -lsubunit -lrt

# Which files run where. Those that take longest begin first, so that nobody waits for them at the end.
# Without sanitizers: what measures memory or compares numbers of many evals, and once more whatever runs
# methods, as on other processors and in another locale.
names     = $(notdir $(basename $(1)))
FIRST    := $(addprefix test_,conform h5guard eval evalset maps trace_damage)
PLAIN    := $(addprefix test_,evaltasks gemm capture_memory)
METHODS_RUN = $(call names,$(shell grep -lE 'harness/(conform|methodrun|spargerun)\.h"' tests/unit/*.c))
THREADS_RUN = $(call names,$(shell grep -lE 'pool_run|pthread_|jobs' tests/unit/*.c))
SANITISED   = $(FIRST) $(filter-out $(FIRST) $(PLAIN),$(call names,$(UNITS)))
SAN_BUILD   = @$(MAKE) --no-print-directory -j2 SAN=address,undefined CFLAGS='-O1 -g1'

.PHONY: tests check check-build check-unit run-unit check-cli check-install check-variants check-h5 check-numpy check-torch
tests: $(CHECK)

# One part after the other whatever -j says; a part that fails does not stop the next.
check: deps
	@WERROR=1 MAKE='$(MAKE)' sh tests/harness/check.sh build sources unit variants cli install h5 numpy fault fuzz

check-build:
	@$(MAKE) --no-print-directory -j2 all tests
	$(SAN_BUILD) all tests fuzzers

check-unit:
	$(SAN_BUILD) run-unit
run-unit: all tests
	@LACUNA=$(BUILD)/lacuna sh tests/harness/run.sh $(CHECK) $(if $(SAN),$(SANITISED),$(PLAIN) $(SANITISED))

check-variants: all tests
	@LACUNA=$(BUILD)/lacuna sh tests/harness/variants.sh $(CHECK) $(PLAIN) $(METHODS_RUN)

check-install: all
	@MAKE='$(MAKE)' sh tests/harness/install.sh

check-cli: all
	@LACUNA=$(BUILD)/lacuna sh tests/cli/run.sh

# The unit tests that start threads, and the commands that do, under ThreadSanitizer. OpenBLAS and HDF5
# are not built with it: what happens inside of them is not seen, and needs no suppression.
TSAN_OPTIONS ?= exitcode=66 second_deadlock_stack=1
.PHONY: check-tsan run-tsan
check-tsan:
	@$(MAKE) --no-print-directory -j2 BUILD=$(BUILD)-tsan SAN=thread CFLAGS='-O1 -g' CUDA=0 run-tsan
run-tsan: all tests
	@TSAN_OPTIONS='$(TSAN_OPTIONS)' LACUNA=$(BUILD)/lacuna sh tests/harness/run.sh $(CHECK) $(THREADS_RUN)
	@TSAN_OPTIONS='$(TSAN_OPTIONS)' LACUNA=$(BUILD)/lacuna sh tests/harness/tsan.sh

# Other HDF5 libraries and programs; those that are not installed are skipped, with a line that says so.
check-h5: all
	@LACUNA=$(BUILD)/lacuna sh tests/h5/run.sh

# `lacuna eval` against a model in NumPy; without one this says so.
check-numpy: all
	@LACUNA=$(BUILD)/lacuna sh tests/numpy/run.sh

# The Python package of capture/torch. Not a part of `check`: a Python with torch is no package of this
# project's; without one this says so.
check-torch: all
	@LACUNA=$(BUILD)/lacuna sh tests/torch/run.sh

# dist/lacuna-*.whl in an environment of its own. Not a part of `check`: pip fetches NumPy and h5py.
.PHONY: check-wheel
check-wheel:
	@MAKE='$(MAKE)' sh tests/harness/wheel.sh

# ---- benchmarks: ratios for a person to read, never a pass or fail -----------------------------

.PHONY: bench
bench: deps
	@$(MAKE) --no-print-directory -j2 $(BUILD)/tests/bench/bench
	@$(BUILD)/tests/bench/bench $(BENCH_ARGS)

# makewan writes checkpoints of the published sizes with random weights (2.8 and 28.6 GB), manyrecords the
# records of a large replay.
$(BUILD)/tests/bench/bench: $(TESTS)/harness/golden.o
$(addprefix $(BUILD)/tests/bench/,bench makewan manyrecords): $(BUILD)/tests/bench/%: $(TESTS)/bench/%.o $(LIB)
	$(call say,LINK,$@)
	$(Q)$(LINK) $(filter %.o,$^) $(LIB) $(LIBS) $(LDLIBS)

# ---- GPU ------------------------------------------------------------------------------------
# The programs of checkcu need no package of the machine that runs them: gpu-bundle links them, and
# lacuna, with everything but libc and libm inside; check-gpu and bench-gpu then run on the machine
# with the GPU (GPU_BIN=dir where they lie).

GPU_BIN   ?= $(BUILD)/gpu
CHECKCU := $(addprefix $(BUILD)/tests/gpu/checkcu,_case.o _bits.o)

.PHONY: check-cuda gpu-bundle check-gpu bench-gpu
ifneq ($(USE_CUDA),)
check-cuda: all gpu-bundle check-headers
	@echo "check-cuda: ok"
gpu-bundle: $(addprefix $(BUILD)/gpu/,lacuna checkcu benchcu libdense.so)
else
check-cuda:
	@echo "check-cuda: skipped, nvcc was not found"
gpu-bundle:
	@echo "gpu-bundle needs nvcc (CUDA toolkit 13.0); none was found, or CUDA=0" >&2; exit 4
endif

$(BUILD)/gpu/checkcu: $(BLAS_LINKED) $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/gpu/checkcu*.c)) $(CU_OBJ) $(LIB)
$(BUILD)/gpu/benchcu: $(BLAS_LINKED) $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/bench/benchcu*.c)) $(BUILD)/tests/harness/maskblocks.o $(CHECKCU) $(CU_OBJ) $(LIB)
$(BUILD)/gpu/checkcu $(BUILD)/gpu/benchcu:
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(BUNDLE_LINK)

# Dense attention alone, for tests/bench/peers.py: a library in a process with other CUDA runtimes.
$(BUILD)/gpu/libdense.so: $(BUILD)/tests/bench/libdense.o \
        $(filter $(BUILD)/cuda/attn/%,$(CU_OBJ)) \
        $(addprefix $(BUILD)/,cuda/device.o core/err.o core/utf8.o core/mem.o core/dtype.o)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(BUNDLE_LINK) -shared -Wl,-Bsymbolic,--exclude-libs,ALL,--no-undefined

# What lies in GPU_BIN is run as it is: a machine with a GPU needs no compiler.
check-gpu: $(if $(wildcard $(GPU_BIN)/checkcu),,gpu-bundle)
	@tests/gpu/check-gpu.sh $(GPU_BIN)

bench-gpu: $(if $(wildcard $(GPU_BIN)/benchcu),,gpu-bundle)
	@$(GPU_BIN)/benchcu $(BENCH_ARGS)

# ---- fuzzers and checks of the sources ------------------------------------------------------

FUZZ     := $(BUILD)/tests/fuzz/fuzz
FUZZ_OBJ := $(patsubst %.c,$(BUILD:-san=)/%.o,$(wildcard tests/fuzz/*.c)) \
            $(addprefix $(TESTS)/harness/,trace_fixture.o h5walk.o)
FUZZ_SECONDS ?= 300
FUZZ_SEED    ?= $(shell date +%s)

$(FUZZ): $(FUZZ_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(LINK) $^ $(LIBS) $(LDLIBS)

.PHONY: fuzzers run-fuzzers fuzz check-fuzz fuzz-bundle
fuzzers: $(FUZZ)

run-fuzzers: fuzzers
	@$(FUZZ) list | xargs -P "$$(nproc)" -I{} sh -c '$(FUZZ) {} $(FUZZ_ARGS) 2>&1 || echo "FAIL {}"' | tee $(BUILD)/fuzz.log; \
	failed=$$(grep -c '^FAIL ' $(BUILD)/fuzz.log); \
	echo "$$(($$($(FUZZ) list | wc -l) - failed)) passed, $$failed failed"; [ "$$failed" -eq 0 ]

# A long run with a new seed, and a short one that is the same every time.
fuzz:
	$(SAN_BUILD) run-fuzzers FUZZ_ARGS='--seed $(FUZZ_SEED) --seconds $(FUZZ_SECONDS)'

check-fuzz:
	$(SAN_BUILD) run-fuzzers FUZZ_ARGS='--seed 1 --cases 3000 --seconds 2'

# With everything but libc and libm inside (no reader multiplies matrices: no BLAS); SAN=address,undefined puts the sanitizers in as well.
fuzz-bundle: $(BUILD)/fuzz-bundle/fuzz
$(BUILD)/fuzz-bundle/fuzz: $(FUZZ_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) $(FLAGS) $(LINKING) $(LDFLAGS) $(SAN_STATIC) -static-libgcc -o $@ $^ \
	    $(filter-out %/libopenblas.a,$(STATIC_LIBS)) -ldl -lrt -lpthread -lm
	$(Q)strip -g $@

# Commands under faults: system calls and allocations that fail, kills, power cuts, changed bytes.
# A short run that is the same every time, and a long one (tests/fault/torture.sh).
TORTURE_SEED ?= 1
FAULT_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %/shim.c,$(wildcard tests/fault/*.c)))
$(BUILD)/tests/fault/fault: $(FAULT_OBJ) $(LIB) $(BUILD)/tests/fault/shim.so
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) $(filter-out %.so,$^) $(LIBS) $(LDLIBS)

# A library that is loaded into other programs: without sanitizers. The interposed functions check
# pointers that their declarations call never NULL.
$(BUILD)/tests/fault/shim.so: tests/fault/shim.c tests/fault/faultlog.h
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(DEFINES) $(CPPFLAGS) -O1 -g -std=c11 -Wall -Wextra -fPIC -shared -o $@ $< -ldl

.PHONY: check-fault torture
check-fault: all $(BUILD)/tests/fault/fault
	@BUILD=$(BUILD) sh tests/fault/torture.sh short 1

torture: all tests $(BUILD)/tests/fault/fault
	$(SAN_BUILD) all
	@BUILD=$(BUILD) sh tests/fault/torture.sh long $(TORTURE_SEED)

# Every header compiles alone; those of the GPU where its toolkit is.
HEADERS = $(wildcard $(addsuffix /*.h,$(FOLDERS) tests/unit tests/fuzz tests/fault tests/harness)) \
          $(if $(USE_CUDA),$(wildcard $(addsuffix /*.h,$(CU_DIRS)) tests/gpu/*.h tests/bench/*.h))
.PHONY: check-headers check-deps check-registry check-metrics check-names check-coverage check-sources lint
check-headers:
	@printf '%s\n' $(HEADERS) | xargs -P 2 -I{} $(CC) $(DEFINES) $(if $(USE_CUDA),-isystem $(CUDA_HOME)/include) \
	    $(CPPFLAGS) $(FLAGS) -fsyntax-only -include {} -x c /dev/null
	@echo "check-headers: ok"

# The dependency order of the folders, .def files against definitions and uses, unique
# file names.
check-deps check-registry check-metrics check-names:
	@sh tests/harness/sources.sh $(@:check-%=%)

# One declaration style. The formatter's versions differ in details: the project's is 14 (Debian 12).
CLANG_FORMAT ?= $(firstword $(shell command -v clang-format-14 2>/dev/null || command -v clang-format 2>/dev/null))
FORMATTED    := sh tests/harness/sources.sh files '*.c' '*.h' '*.cu' '*.cuh' '*.inc'
.PHONY: check-format format compile_commands
check-format:
	@case "$$($(or $(CLANG_FORMAT),false) --version 2>/dev/null)" in \
	*"version 14."*) $(FORMATTED) | xargs -r $(CLANG_FORMAT) --dry-run -Werror && echo "check-format: ok" ;; \
	*) echo "check-format: skipped, clang-format 14 is not installed" ;; esac

format:
	@$(FORMATTED) | xargs $(or $(CLANG_FORMAT),clang-format) -i

# compile_commands.json for clangd and clang-tidy: how every C file is compiled.
compile_commands:
	@for f in main.c $(SRC) $(wildcard cuda/*.c cuda/*/*.c) $(wildcard tests/*/*.c); do \
	    printf '{"directory": "%s", "file": "%s", "arguments": [' "$(CURDIR)" "$$f"; \
	    for a in $(CC) $(DEFINES) $(CPPFLAGS) $(if $(USE_CUDA),-isystem $(CUDA_HOME)/include) $(FLAGS) -c $$f; do printf '"%s", ' "$$a"; done; \
	    printf '"-o", "/dev/null"]},\n'; \
	done | sed '1s/^/[/; $$s/,$$/]/' >compile_commands.json
	@echo "compile_commands.json"

# Every number that the papers print stands on a page, with ours or with a reason.
check-coverage:
	@out=$$(sh tests/harness/coverage.sh $(wildcard doc/reproduce/*.csv doc/reproduce/cuda/*.csv)) || { echo "$$out"; exit 1; }
	@echo "check-coverage: ok"

check-sources: check-headers check-deps check-registry check-metrics check-names check-coverage check-format

# Static analysis of the sources (.clang-tidy says of what) and of the shell scripts.
$(BUILD)/lint/cuda/%.ok: DEFINES += -isystem $(CUDA_HOME)/include
$(BUILD)/lint/cuda/counters.c.ok: DEFINES += -Icuda/cupti
lint: $(patsubst %,$(BUILD)/lint/%.ok,main.c $(SRC) $(CU_C))
	@command -v shellcheck >/dev/null || { echo "lint: shellcheck is missing"; exit 4; }
	$(Q)shellcheck .ci/run tests/harness/*.sh tests/gpu/*.sh tests/cli/*.sh tests/h5/*.sh tests/fault/*.sh
	@echo "lint: ok"
$(BUILD)/lint/%.ok: % .clang-tidy
	@command -v clang-tidy >/dev/null || { echo "lint: clang-tidy is missing"; exit 4; }
	@mkdir -p $(@D)
	$(call say,LINT,$<)
	$(Q)clang-tidy --quiet $< -- $(DEFINES) $(CPPFLAGS) -std=c11 2>$@.err || { cat $@.err; exit 1; }
	@touch $@
