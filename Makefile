# lacuna: one non-recursive makefile, everything built under build/.
#
#   make                 build/lacuna
#   make demo            from a bare machine to tables and figures in out/demo/
#   make check           all tests that need no GPU
#   make help            the other targets and switches
#
# Switches: CUDA=auto|0|1  SAN=address,undefined  V=1  BUILD=dir

BUILD  ?= build
CUDA   ?= auto
SAN    ?=
V      ?= 0
CC     ?= gcc
PYTHON ?= python3

Q := $(if $(filter 1,$(V)),,@)

ARCH := $(shell $(CC) -print-multiarch 2>/dev/null)
CPPFLAGS += -I. -D_GNU_SOURCE -I/usr/include/hdf5/serial -I/usr/include/$(ARCH)/openblas-pthread
CFLAGS ?= -O2 -g
CFLAGS += -std=c11 -ftree-vectorize -fno-math-errno -fno-trapping-math -pthread
CFLAGS += -Wall -Wextra -Werror -Wno-unused-parameter -Wshadow -Wstrict-prototypes \
          -Wmissing-prototypes -Wpointer-arith -Wwrite-strings -Wvla
LDFLAGS += -pthread -L/usr/lib/$(ARCH)/hdf5/serial -L/usr/lib/$(ARCH)/openblas-pthread
LDLIBS  += -lhdf5 -ljansson -lpcre2-8 -lutf8proc -lzstd -lopenblas -lxxhash -lm

ifneq ($(SAN),)
BUILD    := build-san
CFLAGS   += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
CPPFLAGS += -DLACUNA_SANITIZE
LDFLAGS  += -fsanitize=$(SAN)
endif

BUILD_ID := $(shell git describe --always --dirty 2>/dev/null || echo unversioned)

# ---- sources --------------------------------------------------------------------------------

FOLDERS := core capture datasets sim sim/methods analyze plots
SRC     := $(filter-out core/main.c,$(wildcard $(addsuffix /*.c,$(FOLDERS))))
OBJ     := $(SRC:%.c=$(BUILD)/%.o)
LIB     := $(BUILD)/liblacuna.a
TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
TEST_COMMON := $(addprefix $(BUILD)/tests/,check_main.o golden.o trace_fixture.o)

.PHONY: all tests clean help FORCE
all: $(BUILD)/lacuna
tests: $(TESTS)

$(BUILD)/lacuna: $(BUILD)/core/main.o $(LIB)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(LIB): $(OBJ)
	$(if $(Q),@echo "  AR    $@")
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(if $(Q),@echo "  CC    $<")
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# The build id changes with every commit: only this file sees it.
$(BUILD)/core/version.o: $(BUILD)/build-id
$(BUILD)/core/version.o: CPPFLAGS += -DBUILD_ID='"$(BUILD_ID)"' -DBUILD_FLAGS='"$(CC) $(CFLAGS)"'

$(BUILD)/build-id: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(BUILD_ID)' '$(CC) $(CFLAGS)' | cmp -s - $@ || \
	    printf '%s\n' '$(BUILD_ID)' '$(CC) $(CFLAGS)' > $@

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_COMMON) $(LIB)
	$(if $(Q),@echo "  LINK  $@")
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcheck_pic -lsubunit -lrt

.SECONDARY:
-include $(OBJ:.o=.d) $(BUILD)/core/main.d $(wildcard $(BUILD)/tests/*.d)

clean:
	rm -rf build build-san
