# lacuna: one non-recursive makefile, everything built under build/.
#
#   make                 build/lacuna
#   make demo            from a bare machine to tables and figures in out/demo/
#   make check           all tests that need no GPU
#   make install         with PREFIX=/usr/local, DESTDIR=
#   make help            the other targets and switches
#
# Switches: SAN=address,undefined  V=1  WERROR=1  BUILD=dir  OUT=dir  CUDA=auto|0|1  NVCC=path

BUILD  ?= build
SAN    ?=
V      ?= 0
CC     ?= gcc
OUT    ?= out

Q := $(if $(filter 1,$(V)),,@)

# A library that HDF5 brings calls newlocale, which never frees the path of the locales: the leak
# sanitizer would fail every test.
unexport LOCPATH

# clang before 17 has no -print-multiarch: its triple without the vendor is the same name.
ARCH := $(or $(shell $(CC) -print-multiarch 2>/dev/null), \
             $(shell $(CC) -dumpmachine 2>/dev/null | sed 's/-pc-/-/; s/-unknown-/-/'))
ARCH := $(strip $(ARCH))
# CPPFLAGS, CFLAGS and LDFLAGS are the user's and come last; DEFINES and LINKING are ours.
DEFINES := -I. -D_GNU_SOURCE -I/usr/include/hdf5/serial -I/usr/include/$(ARCH)/openblas-pthread
CFLAGS ?= -O2 -g
WERROR ?= 0
WARN_ERROR := $(if $(filter 1,$(WERROR)),-Werror)
FLAGS  := $(CFLAGS) -std=c11 -ftree-vectorize -fno-math-errno -fno-trapping-math -pthread
FLAGS  += -Wall -Wextra $(WARN_ERROR) -Wno-unused-parameter -Wshadow -Wstrict-prototypes \
          -Wmissing-prototypes -Wpointer-arith -Wwrite-strings -Wvla
LINKING := -pthread -L/usr/lib/$(ARCH)/hdf5/serial
LIBS := -lhdf5 -ljansson -lpcre2-8 -lutf8proc -lzstd -lz -lpng -lxxhash -ldl -lm

ifneq ($(words $(BUILD)) $(words $(OUT)),1 1)
$(error BUILD='$(BUILD)' OUT='$(OUT)': each is one folder, without spaces)
endif

# Beside the plain build; a make inside of a sanitised one does not add the suffix again.
ifneq ($(SAN),)
override BUILD := $(BUILD:-san=)-san
FLAGS    += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
DEFINES += -DLACUNA_SANITIZE
LINKING += -fsanitize=$(SAN)
SAN_STATIC := $(if $(findstring address,$(SAN)),-static-libasan) $(if $(findstring undefined,$(SAN)),-static-libubsan)
endif

# ---- CUDA -----------------------------------------------------------------------------------
# auto: with the toolkit where nvcc is found. cudart is linked statically; CUPTI and cuBLAS are
# opened at run time by the files that use them, so that one binary runs with and without a GPU.

.DEFAULT_GOAL := all
CUDA ?= auto
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
ifeq ($(filter auto 0 1,$(CUDA)),)
$(error CUDA=$(CUDA): expected auto, 0 or 1)
endif
ifeq ($(CUDA),1)
ifeq ($(NVCC),)
$(error CUDA=1, but nvcc was not found: install the CUDA toolkit (13.0), put nvcc on the PATH or \
        give NVCC=path, or build with CUDA=0)
endif
endif
USE_CUDA := $(if $(filter 0,$(CUDA))$(SAN),,$(if $(NVCC),1))

ifneq ($(USE_CUDA),)
CUDA_HOME   := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
$(BUILD)/main.o: DEFINES += -DLACUNA_CUDA
$(BUILD)/cuda/%.o $(BUILD)/tests/gpu/%.o $(BUILD)/tests/bench/%.o: DEFINES += -isystem $(CUDA_HOME)/include
$(BUILD)/cuda/counters.o: DEFINES += -Icuda/cupti
CUDA_LDLIBS := $(CUDA_HOME)/lib64/libcudart_static.a -lstdc++ -ldl -lrt -lpthread
NVFLAGS := -std=c++17 -O3 -lineinfo -I. -gencode arch=compute_90a,code=sm_90a \
           -gencode arch=compute_80,code=compute_80 -Xptxas -Werror,-warn-spills \
           -Xcompiler -Wall,-Wextra,-fno-exceptions
endif

BUILD_ID := $(shell git describe --always --dirty 2>/dev/null || echo unversioned)

# ---- sources --------------------------------------------------------------------------------

FOLDERS := core capture capture/trace sim sim/blocks sim/methods $(patsubst %/,%,$(wildcard sim/methods/*/)) \
           eval analyze plots report reproduce
SRC     := $(filter-out %_linked.c,$(wildcard $(addsuffix /*.c,$(FOLDERS))))
OBJ     := $(SRC:%.c=$(BUILD)/%.o)
CU_DIRS := cuda cuda/attn cuda/metrics cuda/own cuda/select cuda/methods $(patsubst %/,%,$(wildcard cuda/methods/*/))
CU_SRC  := $(if $(USE_CUDA),$(wildcard $(addsuffix /*.cu,$(CU_DIRS))))
CU_OBJ  := $(patsubst %.c,$(BUILD)/%.o,$(if $(USE_CUDA),$(wildcard $(addsuffix /*.c,$(CU_DIRS))))) \
           $(CU_SRC:%.cu=$(BUILD)/%.cu.o)
LIB     := $(BUILD)/liblacuna.a
# Those that take longest begin first, so that nobody waits for them at the end.
LONGEST := $(addprefix tests/unit/test_,conform.c h5guard.c eval.c evalset.c evaltasks.c maps.c trace_damage.c)
TESTS   := $(patsubst %.c,$(BUILD)/%,$(LONGEST) $(filter-out $(LONGEST),$(wildcard tests/unit/test_*.c)))
TEST_COMMON := $(addprefix $(BUILD)/tests/harness/,check_main.o golden.o trace_fixture.o tinymodel.o records_fixture.o \
               testmethods.o meanblocks.o evalcmd.o)

.PHONY: all tests clean help FORCE
all: $(BUILD)/lacuna
tests: $(TESTS)

$(BUILD)/lacuna: $(BUILD)/main.o $(CU_OBJ) $(LIB)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(LINKING) $(LDFLAGS) -o $@ $^ $(LIBS) $(LDLIBS) $(CUDA_LDLIBS)

$(LIB): $(OBJ)
	$(if $(Q),@echo "  AR    $@")
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  CC    $<")
	$(Q)$(CC) $(DEFINES) $(CPPFLAGS) $(FLAGS) -MMD -MP -c -o $@ $<

# ptxas reports serialised wgmma, ignored setmaxnreg and injected waits as mere information: they
# fail the build here, as spills do by the flag. C7519 is harmless.
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(if $(Q),@echo "  NVCC  $<")
	$(Q)$(NVCC) $(NVFLAGS) -MMD -MP -MT $@ -MF $(@:.o=.d) -c -o $@.tmp $< 2>$@.log; rc=$$?; \
	    grep -v C7519 $@.log >&2; \
	    if [ $$rc -ne 0 ] || grep -qE 'Potential Performance Loss|C7517' $@.log; then \
	        rm -f $@.tmp; exit 1; fi; mv $@.tmp $@

# The one file that knows whether there is a GPU back end follows the switch.
$(BUILD)/main.o: $(BUILD)/with-cuda
$(BUILD)/with-cuda: FORCE
	@mkdir -p $(@D)
	@echo '$(USE_CUDA)' | cmp -s - $@ || echo '$(USE_CUDA)' > $@

# The build id changes with every commit: only this file sees it, and only a change rebuilds it.
$(BUILD)/core/version.o: DEFINES += -DBUILD_ID='"$(BUILD_ID)"' -DBUILD_FLAGS='"$(CC) $(FLAGS)"'
$(BUILD)/core/version.o: $(BUILD)/build-id

# OpenBLAS is loaded when it is needed: the threaded one, whichever is the system's choice.
$(BUILD)/core/openblas.o: DEFINES += -DOPENBLAS_DIR='"/usr/lib/$(ARCH)/openblas-pthread/"'

$(BUILD)/build-id: FORCE
	@mkdir -p $(@D)
	@echo '$(BUILD_ID) $(CC) $(FLAGS)' | cmp -s - $@ || echo '$(BUILD_ID) $(CC) $(FLAGS)' > $@
FORCE:

# Style and script of the report are files of their own; the program holds them as texts. Every line
# becomes a literal, and the hash of the script goes into the page's policy.
PAGE_INC := $(addprefix $(BUILD)/inc/report/,page_css.inc page_js.inc page_js_sha256.inc)
$(BUILD)/report/report_page.o $(BUILD)/lint/report/report_page.c.ok: DEFINES += -I$(BUILD)/inc
$(BUILD)/report/report_page.o $(BUILD)/lint/report/report_page.c.ok: $(PAGE_INC)
$(BUILD)/inc/report/page_%.inc: report/page.%
	@mkdir -p $(@D)
	$(Q)sed 's/\\/\\\\/g; s/"/\\"/g; s/.*/"&\\n"/' $< >$@
$(BUILD)/inc/report/page_js_sha256.inc: report/page.js
	@mkdir -p $(@D)
	$(Q)sha256sum $< | sed 's/ .*//; s/.*/"&"/' >$@

$(addprefix $(BUILD)/tests/unit/test_,conform rowsample budget outside hyperattention qk_sparse bidirectional maskexport selectcost): \
  $(BUILD)/tests/harness/conform.o
$(BUILD)/tests/unit/test_exec: $(BUILD)/tests/harness/conform.o | $(BUILD)/tests/harness/execpeer
$(BUILD)/tests/unit/test_exec.o: DEFINES += -DEXEC_PEER='"$(BUILD)/tests/harness/execpeer"'
$(BUILD)/tests/harness/execpeer: $(BUILD)/tests/harness/execpeer.o
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(LINKING) $(LDFLAGS) -o $@ $^
$(BUILD)/tests/unit/test_calls: $(BUILD)/tests/harness/choiceown.o
$(BUILD)/tests/unit/test_maskblocks: $(BUILD)/tests/harness/maskblocks.o
$(addprefix $(BUILD)/tests/unit/test_,wan_device evalvideo): $(BUILD)/tests/harness/fakedenoiser.o
$(BUILD)/tests/unit/test_h5guard: $(BUILD)/tests/harness/h5walk.o
# Plain C that only the GPU's programs link, but that needs no GPU to be tested.
PLAN_OBJ := $(BUILD)/cuda/attn/plan.o $(BUILD)/cuda/attn/planitems.o
$(BUILD)/tests/unit/test_copies: $(BUILD)/cuda/copies.o $(PLAN_OBJ)
$(BUILD)/tests/unit/test_values: $(BUILD)/cuda/values.o
$(BUILD)/tests/unit/test_plan: $(PLAN_OBJ)
$(BUILD)/tests/unit/test_metrics_plan: $(BUILD)/cuda/metrics/metrics_plan.o $(PLAN_OBJ)
# More than a hundred programs: where there is a faster linker, it takes half the time.
TEST_LINKER := $(if $(shell command -v ld.gold),-fuse-ld=gold)
$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(TEST_COMMON) $(LIB)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(LINKING) $(TEST_LINKER) $(LDFLAGS) -o $@ $(filter-out $(LIB),$^) $(LIB) $(LIBS) $(LDLIBS) -lcheck_pic -lsubunit -lrt

.SECONDARY:
-include $(OBJ:.o=.d) $(CU_OBJ:.o=.d) $(BUILD)/main.d $(wildcard $(BUILD)/tests/*/*.d $(BUILD)/cuda/*.d $(BUILD)/cuda/*/*.d)

# ---- what a machine needs -------------------------------------------------------------------

DEBIAN := gcc libc6-dev libhdf5-dev libjansson-dev libpcre2-dev libutf8proc-dev libzstd-dev \
          zlib1g-dev libxxhash-dev libopenblas-pthread-dev libpng-dev gnuplot-nox check libsubunit-dev

.PHONY: deps
deps:
	@missing=; \
	if ! command -v dpkg-query >/dev/null; then \
	    echo "deps: not a Debian system; what is needed, by its Debian names: $(DEBIAN)"; exit 0; fi; \
	for p in $(DEBIAN); do \
	    dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; \
	done; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" -ne 0 ]; then \
	    echo "deps: packages are missing; run:"; \
	    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends$$missing"; \
	    exit 4; fi; \
	echo "deps: installing$$missing"; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends $$missing >/dev/null

# ---- demo -----------------------------------------------------------------------------------
# The second make starts after the packages are there, so that it sees the compiler.

.PHONY: demo demo-run
demo: deps
	@$(MAKE) --no-print-directory -j2 all
	@$(MAKE) --no-print-directory demo-run

# From a prompt to a report. Every line is a command that a user would type.
D := $(OUT)/demo
L := $(BUILD)/lacuna
METHODS := -m dense -m streaming:sink=4:window=128,256,512 -m spargeattn:theta=0.1,-1:tau=0.9 \
           -m sampleattention:alpha_c=0.8,0.95:alpha_s=0.8 -m sale:tau=0.004,0.016,0.064 \
           -m fg-attn:mode=pooled:M=16,64 -m oracle:alpha=0.8,0.9,0.95
VIDEO_METHODS := -m dense -m fg-attn:refresh=2:tau=0.5,1,2 -m spargeattn:theta=-1:tau=0.5,0.8 \
                 -m oracle:alpha=0.9
demo-run:
	@rm -rf $(D) && mkdir -p $(D)
	sh datasets/prompts/make_prompt.sh core > $(D)/prompt.c
	$(L) capture --model datasets/models/code-lm --prompt $(D)/prompt.c --tokens 2048 -o $(D)/code.h5
	$(L) trace info $(D)/code.h5
	$(L) trace verify $(D)/code.h5
	$(L) replay $(D)/code.h5 $(METHODS) --precision f32 -o $(D)/code
	$(L) replay $(D)/code.h5 -m sampleattention -m sale --layers 2 --dump-masks $(D)/masks.h5 -o $(D)/masks
	$(L) capture --model datasets/models/video-dit --size 4x64x96 --steps 4 -o $(D)/video.h5
	$(L) replay $(D)/video.h5 $(VIDEO_METHODS) -o $(D)/video
	$(L) analyze $(D)/code -o $(D)/summary.md
	$(L) analyze $(D)/code --table by-layer --format csv -o $(D)/by-layer.csv
	$(L) analyze $(D)/code --table map --format tex -o $(D)/map.tex
	$(L) analyze $(D)/video -o $(D)/video-summary.md
	$(L) plot heatmap $(D)/code.h5 --layer 2 -o $(D)/heatmap.png
	$(L) plot overlay $(D)/code.h5 --masks $(D)/masks.h5 --method sale --layer 2 --head 5 -o $(D)/overlay.png
	$(L) plot layerhead $(D)/code -o $(D)/layerhead.png
	$(L) plot pareto $(D)/code -o $(D)/pareto.png
	$(L) plot granularity $(D)/code -o $(D)/granularity.png
	$(L) report $(D)/code -o $(D)/report
	@$(L) analyze $(D)/code
	@echo "see $(D)/: traces, records, tables, figures and report/index.html"

# Every table and figure from the shipped models, into doc/gallery/.
.PHONY: gallery
gallery: all
	sh doc/gallery/make.sh $(BUILD)/lacuna $(OUT)/gallery

# ---- installation ---------------------------------------------------------------------------
# The program finds its data in ../share/lacuna beside it, so the prefix may be moved as a whole.

PREFIX  ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/^ *return "\([0-9][0-9.]*\)";/\1/p' core/version.c)
I_BIN   := $(DESTDIR)$(PREFIX)/bin
I_SHARE := $(DESTDIR)$(PREFIX)/share
DATA    := $(shell git ls-files datasets 2>/dev/null || find datasets -type f)

.PHONY: install uninstall dist deb
install: all
	$(Q)install -d $(I_BIN) $(I_SHARE)/man/man1 $(I_SHARE)/bash-completion/completions \
	    $(I_SHARE)/zsh/site-functions $(I_SHARE)/fish/vendor_completions.d $(I_SHARE)/doc/lacuna
	$(Q)install -m 755 $(BUILD)/lacuna $(I_BIN)/lacuna
	$(Q)for f in $(DATA); do \
	    d=$(I_SHARE)/lacuna/$${f#datasets/}; install -d "$$(dirname "$$d")" && install -m 644 $$f "$$d" || exit 1; done
	$(Q)$(BUILD)/lacuna help --man >$(I_SHARE)/man/man1/lacuna.1
	$(Q)for c in $$($(BUILD)/lacuna help | sed -n '/^Commands/,/^$$/s/^  \([a-z]*\) .*/\1/p'); do \
	    $(BUILD)/lacuna help --man $$c >$(I_SHARE)/man/man1/lacuna-$$c.1 || exit 1; done
	$(Q)$(BUILD)/lacuna help --completion=bash >$(I_SHARE)/bash-completion/completions/lacuna
	$(Q)$(BUILD)/lacuna help --completion=zsh >$(I_SHARE)/zsh/site-functions/_lacuna
	$(Q)$(BUILD)/lacuna help --completion=fish >$(I_SHARE)/fish/vendor_completions.d/lacuna.fish
	$(Q)install -m 644 README.md CHANGELOG.md CITATION.cff LICENSE $(I_SHARE)/doc/lacuna
	@echo "installed $(I_BIN)/lacuna, its data, manual pages and completions below $(I_SHARE)"

# Every table of the papers that traces give, at reduced lengths; pages in $(OUT)/papers.
.PHONY: reproduce
reproduce: all
	nice $(BUILD)/lacuna reproduce spargeattn sampleattention sale fg-attn --quick -o $(OUT)/papers

# What install made, and folders that are empty then.
uninstall:
	$(Q)rm -f $(I_BIN)/lacuna $(I_SHARE)/man/man1/lacuna.1 $(I_SHARE)/man/man1/lacuna-*.1 \
	    $(I_SHARE)/bash-completion/completions/lacuna $(I_SHARE)/zsh/site-functions/_lacuna \
	    $(I_SHARE)/fish/vendor_completions.d/lacuna.fish
	$(Q)rm -rf $(I_SHARE)/lacuna $(I_SHARE)/doc/lacuna
	$(Q)for d in man/man1 man bash-completion/completions bash-completion zsh/site-functions zsh \
	    fish/vendor_completions.d fish doc; do rmdir $(I_SHARE)/$$d 2>/dev/null; done; \
	    rmdir $(I_SHARE) $(I_BIN) $(DESTDIR)$(PREFIX) 2>/dev/null; true

# The tracked files as an archive that builds without git.
dist:
	$(Q)mkdir -p $(OUT)
	$(Q)git archive --prefix=lacuna-$(VERSION)/ HEAD | gzip -9n >$(OUT)/lacuna-$(VERSION).tar.gz
	@echo "$(OUT)/lacuna-$(VERSION).tar.gz"

# A Debian package of this build. What it depends on is read from the program.
deb: all
	@command -v dpkg-shlibdeps >/dev/null || { echo "deb: dpkg-shlibdeps is missing: install dpkg-dev"; exit 4; }
	$(Q)rm -rf $(OUT)/deb && mkdir -p $(OUT)/deb/debian $(OUT)/deb/root/DEBIAN
	$(Q)$(MAKE) --no-print-directory install PREFIX=/usr DESTDIR=$(OUT)/deb/root >/dev/null
	$(Q)strip $(OUT)/deb/root/usr/bin/lacuna
	$(Q)gzip -9n $(OUT)/deb/root/usr/share/man/man1/*.1
	$(Q)printf 'Source: lacuna\n\nPackage: lacuna\nArchitecture: any\n' >$(OUT)/deb/debian/control
	$(Q)cd $(OUT)/deb && depends=$$(dpkg-shlibdeps -O root/usr/bin/lacuna | sed 's/^shlibs:Depends=//') && \
	    printf '%s\n' 'Package: lacuna' 'Version: $(VERSION)' "Architecture: $$(dpkg --print-architecture)" \
	    'Maintainer: the lacuna project <lacuna@localhost>' 'Section: science' 'Priority: optional' \
	    "Depends: $$depends, libopenblas0-pthread" 'Recommends: gnuplot-nox, make' \
	    'Description: trace-driven simulator and workbench for sparse attention' \
	    ' Captures queries, keys and values of attention layers, replays sparse-attention' \
	    ' methods on them, and makes tables and figures.' >root/DEBIAN/control
	$(Q)dpkg-deb --root-owner-group --build $(OUT)/deb/root $(OUT)/lacuna_$(VERSION)_$$(dpkg --print-architecture).deb
	$(Q)rm -rf $(OUT)/deb

# ---- tests ----------------------------------------------------------------------------------

.PHONY: check check-build check-unit check-cli check-install check-h5 check-numpy check-variants check-san
# One after the other whatever -j says: check-san and check-fuzz build the same sanitised library.
# A part that fails does not stop the next.
check: deps
	@WERROR=1 MAKE='$(MAKE)' sh tests/harness/check.sh build sources unit cli install h5 numpy fault variants san fuzz

check-build:
	@$(MAKE) --no-print-directory -j2 all tests

# Damaged files are read under the sanitizers alone (check-san): what they look for is what those see. What compares numbers of many
# evals runs without them: test_eval goes the same ways.
DAMAGE := $(addprefix $(BUILD)/tests/unit/test_,trace_damage h5guard)
NUMBERS := $(BUILD)/tests/unit/test_evaltasks
check-unit: all tests
	@LACUNA=$(BUILD)/lacuna sh tests/harness/run.sh $(filter-out $(if $(SAN),$(NUMBERS),$(DAMAGE)),$(TESTS))

check-install: all
	@MAKE='$(MAKE)' sh tests/harness/install.sh

check-cli: all
	@LACUNA=$(BUILD)/lacuna sh tests/cli/run.sh

# The tests that run methods, and the command line, as on other processors and in another locale.
METHOD_TESTS = $(patsubst %.c,$(BUILD)/%,$(shell grep -lE 'harness/(conform|methodrun|spargerun)\.h"' tests/unit/*.c))
check-variants: all tests
	@LACUNA=$(BUILD)/lacuna sh tests/harness/variants.sh $(METHOD_TESTS)

# The same unit tests under the address and undefined-behaviour sanitizers.
check-san:
	@$(MAKE) --no-print-directory -j2 SAN=address,undefined CFLAGS='-O1 -g1' all tests
	@$(MAKE) --no-print-directory SAN=address,undefined CFLAGS='-O1 -g1' check-unit

# The unit tests that start threads, and the commands that do, under ThreadSanitizer. OpenBLAS and HDF5
# are not built with it: what happens inside of them is not seen, and needs no suppression.
THREAD_TESTS = $(patsubst %.c,$(BUILD)/%,$(shell grep -lE 'pool_run|pthread_|jobs' tests/unit/*.c))
TSAN_OPTIONS ?= exitcode=66 second_deadlock_stack=1
.PHONY: check-tsan run-tsan
check-tsan:
	@$(MAKE) --no-print-directory -j2 BUILD=$(BUILD)-tsan SAN=thread CFLAGS='-O1 -g' CUDA=0 run-tsan
run-tsan: all $(THREAD_TESTS)
	@TSAN_OPTIONS='$(TSAN_OPTIONS)' LACUNA=$(BUILD)/lacuna sh tests/harness/run.sh $(THREAD_TESTS)
	@TSAN_OPTIONS='$(TSAN_OPTIONS)' LACUNA=$(BUILD)/lacuna sh tests/harness/tsan.sh

# Other HDF5 libraries and programs; those that are not installed are skipped, with a line that says so.
check-h5: all
	@LACUNA=$(BUILD)/lacuna sh tests/h5/run.sh

# `lacuna eval` against a model in NumPy; without one this says so.
.PHONY: check-numpy
check-numpy: all
	@LACUNA=$(BUILD)/lacuna sh tests/numpy/run.sh

# The Python package of capture/torch. Not a part of `check`: a Python with torch is no package of this
# project's; without one this says so.
.PHONY: check-torch
check-torch: all
	@LACUNA=$(BUILD)/lacuna sh tests/torch/run.sh

# ---- benchmarks: ratios for a person to read, never a pass or fail -----------------------------

.PHONY: bench
bench: deps
	@$(MAKE) --no-print-directory -j2 $(BUILD)/tests/bench/bench
	@$(BUILD)/tests/bench/bench $(BENCH_ARGS)

$(BUILD)/tests/bench/bench: $(BUILD)/tests/bench/bench.o $(BUILD)/tests/harness/golden.o $(LIB)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(LINKING) $(LDFLAGS) -o $@ $^ $(LIBS) $(LDLIBS)

# Writes checkpoints of the published sizes with random weights (2.8 and 28.6 GB).
$(BUILD)/tests/bench/makewan: $(BUILD)/tests/bench/makewan.o $(LIB)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(LINKING) $(LDFLAGS) -o $@ $^ $(LIBS) $(LDLIBS)

# ---- GPU ------------------------------------------------------------------------------------
# The programs of checkcu need no package of the machine that runs them: gpu-bundle links them, and
# lacuna, with everything but libc and libm inside; check-gpu and bench-gpu then run on the machine
# with the GPU (GPU_BIN=dir where they lie).

GPU_BIN   ?= $(BUILD)/gpu
STATIC_LIBS := $(addprefix /usr/lib/$(ARCH)/,libhdf5_serial.a libsz.a libaec.a libpng.a libz.a \
               libjansson.a libpcre2-8.a libutf8proc.a libzstd.a libxxhash.a \
               openblas-pthread/libopenblas.a)
BUNDLE_LINK = $(CXX) -static-libstdc++ -static-libgcc -o $@ $^ $(STATIC_LIBS) \
              $(CUDA_HOME)/lib64/libcudart_static.a -ldl -lrt -lpthread -lm
CXX ?= g++
CHECKCU := $(addprefix $(BUILD)/tests/gpu/checkcu,_case.o _bits.o)

.PHONY: gpu-bundle check-gpu bench-gpu
ifneq ($(USE_CUDA),)
gpu-bundle: $(addprefix $(BUILD)/gpu/,lacuna checkcu benchcu libdense.so)
else
gpu-bundle:
	@echo "gpu-bundle needs nvcc (CUDA toolkit 13.0); none was found, or CUDA=0" >&2; exit 4
endif

# OpenBLAS lies inside the programs of the bundle, not beside them.
BLAS_LINKED := $(BUILD)/core/openblas_linked.o
$(BUILD)/gpu/lacuna: $(BLAS_LINKED) $(BUILD)/main.o $(CU_OBJ) $(LIB)
$(BUILD)/gpu/checkcu: $(BLAS_LINKED) $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/gpu/checkcu*.c)) $(CU_OBJ) $(LIB)
$(BUILD)/gpu/benchcu: $(BLAS_LINKED) $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/bench/benchcu*.c)) $(BUILD)/tests/harness/maskblocks.o $(CHECKCU) $(CU_OBJ) $(LIB)
$(BUILD)/gpu/lacuna $(BUILD)/gpu/checkcu $(BUILD)/gpu/benchcu:
	@mkdir -p $(@D)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(BUNDLE_LINK)

# Dense attention alone, for tests/bench/peers.py: a library in a process with other CUDA runtimes.
$(BUILD)/gpu/libdense.so: $(BUILD)/tests/bench/libdense.o \
        $(filter $(BUILD)/cuda/attn/%,$(CU_OBJ)) \
        $(addprefix $(BUILD)/,cuda/device.o cuda/tensormap.o core/err.o core/utf8.o core/greedy.o core/mem.o core/dtype.o)
	@mkdir -p $(@D)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(BUNDLE_LINK) -shared -Wl,-Bsymbolic,--exclude-libs,ALL,--no-undefined

# What lies in GPU_BIN is run as it is: a machine with a GPU needs no compiler.
check-gpu: $(if $(wildcard $(GPU_BIN)/checkcu),,gpu-bundle)
	@tests/gpu/check-gpu.sh $(GPU_BIN)

bench-gpu: $(if $(wildcard $(GPU_BIN)/benchcu),,gpu-bundle)
	@$(GPU_BIN)/benchcu $(BENCH_ARGS)

# ---- fuzzers and checks of the sources ------------------------------------------------------

FUZZ     := $(BUILD)/tests/fuzz/fuzz
FUZZ_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/fuzz/*.c)) \
            $(addprefix $(BUILD)/tests/harness/,trace_fixture.o h5walk.o)
FUZZ_SECONDS ?= 300
FUZZ_SEED    ?= $(shell date +%s)

$(FUZZ): $(FUZZ_OBJ) $(LIB)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(LINKING) $(LDFLAGS) -o $@ $^ $(LIBS) $(LDLIBS)

.PHONY: fuzzers run-fuzzers fuzz check-fuzz fuzz-long fuzz-bundle
fuzzers: $(FUZZ)

run-fuzzers: fuzzers
	@passed=0; failed=0; \
	for f in $$($(FUZZ) list); do \
	    if $(FUZZ) $$f $(FUZZ_ARGS); then passed=$$((passed + 1)); else failed=$$((failed + 1)); fi; \
	done; \
	echo "$$passed passed, $$failed failed"; [ $$failed -eq 0 ]

# A long run with a new seed, and a short one that is the same every time.
fuzz:
	@$(MAKE) --no-print-directory SAN=address,undefined CFLAGS='-O1 -g1' run-fuzzers \
	    FUZZ_ARGS='--seed $(FUZZ_SEED) --seconds $(FUZZ_SECONDS)'

check-fuzz:
	@$(MAKE) --no-print-directory SAN=address,undefined CFLAGS='-O1 -g1' run-fuzzers \
	    FUZZ_ARGS='--seed 1 --cases 3000 --seconds 5'

# N inputs in all, over all fuzzers and processors, with a table at the end; FUZZ_BIN=file is a program
# that fuzz-bundle made: it needs no package of the machine that runs it, only this folder's data.
N    ?= 1000000
SEED ?= 1
JOBS ?= $(shell nproc)
FUZZ_BIN ?= $(FUZZ)
fuzz-long: $(if $(wildcard $(FUZZ_BIN)),,fuzzers)
	@$(FUZZ_BIN) long --inputs $(N) --seed $(SEED) --jobs $(JOBS)

# With everything but libc and libm inside (no reader multiplies matrices: no BLAS); SAN=address,undefined puts the sanitizers in as well.
fuzz-bundle: $(BUILD)/fuzz-bundle/fuzz
$(BUILD)/fuzz-bundle/fuzz: $(FUZZ_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(LINKING) $(LDFLAGS) $(SAN_STATIC) -static-libgcc -o $@ $^ \
	    $(filter-out %/libopenblas.a,$(STATIC_LIBS)) -ldl -lrt -lpthread -lm
	$(Q)strip -g $@

# Commands under faults: system calls and allocations that fail, kills, power cuts, changed bytes.
# A short run that is the same every time, and a long one with the fuzzers (tests/fault/torture.sh).
TORTURE_SEED ?= $(SEED)
FUZZ_INPUTS  ?= 1000000
FAULT_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %/shim.c,$(wildcard tests/fault/*.c)))
$(BUILD)/tests/fault/fault: $(FAULT_OBJ) $(LIB) $(BUILD)/tests/fault/shim.so
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(FLAGS) $(LINKING) $(LDFLAGS) -o $@ $(filter-out %.so,$^) $(LIBS) $(LDLIBS)

# A library that is loaded into other programs: without sanitizers. The interposed functions check
# pointers that their declarations call never NULL.
$(BUILD)/tests/fault/shim.so: tests/fault/shim.c tests/fault/faultlog.h
	@mkdir -p $(@D)
	$(if $(Q),@echo "  CC    $<")
	$(Q)$(CC) $(DEFINES) $(CPPFLAGS) -O1 -g -std=c11 -Wall -Wextra -fPIC -shared -o $@ $< -ldl

.PHONY: check-fault torture
check-fault: all $(BUILD)/tests/fault/fault
	@BUILD=$(BUILD) sh tests/fault/torture.sh short 1

torture: all tests $(BUILD)/tests/fault/fault
	@$(MAKE) --no-print-directory -j2 SAN=address,undefined CFLAGS='-O1 -g1' all fuzzers
	@BUILD=$(BUILD) FUZZ_INPUTS=$(FUZZ_INPUTS) sh tests/fault/torture.sh long $(TORTURE_SEED)

.PHONY: help
help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,/^$$/p'
	@echo "targets: all demo gallery install uninstall dist deb check check-unit check-cli check-install check-h5 check-numpy check-variants check-san check-fuzz check-fault torture check-tsan fuzz-long fuzz-bundle check-format check-torch format lint bench fuzz compile_commands deps clean"
	@echo "         gpu-bundle check-gpu bench-gpu"

# Every header compiles alone; those of the GPU where its toolkit is.
HEADERS := $(wildcard $(addsuffix /*.h,$(FOLDERS) tests/unit tests/fuzz tests/fault tests/harness))
GPU_HEADERS := $(if $(USE_CUDA),$(wildcard $(addsuffix /*.h,$(CU_DIRS)) tests/gpu/*.h tests/bench/*.h))
$(GPU_HEADERS:%=$(BUILD)/headers/%.ok): DEFINES += -isystem $(CUDA_HOME)/include
HEADERS += $(GPU_HEADERS)
.PHONY: check-headers check-deps check-registry check-metrics check-names check-example check-sources lint
check-headers: $(HEADERS:%=$(BUILD)/headers/%.ok)
	@echo "check-headers: ok"
$(BUILD)/headers/%.ok: %
	@mkdir -p $(@D)
	$(Q)$(CC) $(DEFINES) $(CPPFLAGS) $(FLAGS) -MMD -MP -MT $@ -MF $(@:.ok=.d) -fsyntax-only -include $< -x c /dev/null
	@touch $@
-include $(HEADERS:%=$(BUILD)/headers/%.d)

# The dependency order of the folders, .def files against definitions and uses, unique
# file names, the example of a page against its file.
check-deps check-registry check-metrics check-names check-example:
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

check-sources: check-headers check-deps check-registry check-metrics check-names check-example check-format

# Static analysis of the sources (.clang-tidy says of what) and of the shell scripts.
lint: $(SRC:%=$(BUILD)/lint/%.ok) $(BUILD)/lint/main.c.ok
	@command -v shellcheck >/dev/null || { echo "lint: shellcheck is missing"; exit 4; }
	$(Q)shellcheck .ci/run tests/harness/*.sh tests/gpu/*.sh tests/cli/*.sh tests/h5/*.sh tests/fault/*.sh
	@echo "lint: ok"
$(BUILD)/lint/%.ok: % .clang-tidy
	@command -v clang-tidy >/dev/null || { echo "lint: clang-tidy is missing"; exit 4; }
	@mkdir -p $(@D)
	$(if $(Q),@echo "  LINT  $<")
	$(Q)clang-tidy --quiet $< -- $(DEFINES) $(CPPFLAGS) -std=c11 2>$@.err || { cat $@.err; exit 1; }
	@touch $@

clean:
	rm -rf $(BUILD:-san=) $(BUILD:-san=)-san $(BUILD:-san=)-tsan-san
