sh "$ROOT/tests/harness/gpulines.sh" && echo "every page says what the registries say"
